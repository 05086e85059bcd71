"""A trained run as a web service.

spml train photos/ --out runs/photos
RUN=runs/photos uvicorn --app-dir examples fastapi_service:app
curl --data-binary @photo.jpg http://127.0.0.1:8000/tags
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

import anyio
from fastapi import FastAPI, HTTPException, Request
from PIL import Image, UnidentifiedImageError

import spml

MOST_BYTES = 20_000_000


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the classifier once, when the service starts."""
    app.state.run = spml.load(os.environ["RUN"])
    yield


app = FastAPI(title="Tags", lifespan=lifespan)


@app.post("/tags")
async def tags(request: Request) -> dict[str, float]:
    """Return the probability of every label, for the image in the body of the request, highest first."""
    if int(request.headers.get("content-length", 0)) > MOST_BYTES:
        raise HTTPException(413, "the image is too large")
    try:
        image = Image.open(BytesIO(await request.body())).convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise HTTPException(415, "the body is not an image that can be read") from error
    run: spml.Run = app.state.run
    (probabilities,) = await anyio.to_thread.run_sync(run.predict, [image])  # do not block other requests
    order = probabilities.argsort()[::-1]
    return {run.classes[place]: round(float(probabilities[place]), 4) for place in order}
