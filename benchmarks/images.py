"""A folder of images that do not fit into the memory there is: seconds an image beside those at a tenth as many.

    python benchmarks/images.py                       # 9,000 and 90,000 images at 64 pixels, 1 GiB
    python benchmarks/images.py --images 500,5000     # fewer, to try it

`spml train` (one epoch of the network `small`), `spml predict` and `spml recover`, each a command of its own in a
control group of that limit, which counts the page cache too: decoded, the images of the larger folder do not fit.
Seconds an image are those beyond a run on few images, which is what it costs to start. The images are synthetic JPEG
files in a folder per class, made in a temporary folder and deleted.
"""

import argparse
import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from limited import Used, compare, in_turns, run
from record import record

MIB, GIB = 2**20, 2**30


def make(folder: Path, images: int, side: int, classes: int, seed: int) -> int:
    """`folder/<class>/<number>.jpg`: a disc of the class's colour, and one of another's, on a ground of soft noise.

    Returns their bytes.
    """
    rng = np.random.default_rng(seed)
    colours = rng.integers(0, 256, (classes, 3))
    down, right = np.mgrid[:side, :side]
    for name in range(classes):
        (folder / f"class-{name}").mkdir(parents=True)
    total = 0
    for number in range(images):
        ground = Image.fromarray(rng.integers(60, 200, (4, 4, 3), dtype=np.uint8))
        pixels = np.array(ground.resize((side, side), Image.Resampling.BILINEAR))
        first, second = rng.integers(0, classes, 2)
        for colour in (second, first):
            y, x = rng.integers(0, side, 2)
            pixels[(down - y) ** 2 + (right - x) ** 2 < (side // 4) ** 2] = colours[colour]
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, "JPEG")
        total += (folder / f"class-{first}" / f"{number:08d}.jpg").write_bytes(encoded.getvalue())
    return total


def forget(folder: Path) -> None:
    """Let the system drop the files' pages, so that those who read them next pay for them."""
    os.sync()  # pages not yet written cannot be dropped
    for file in folder.rglob("*.jpg"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def stages(images: int, options: argparse.Namespace) -> dict[str, Used]:
    """Each command on so many images."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        data, trained = Path(name, "images"), str(Path(name, "run"))
        size = make(data, images, options.side, options.classes, options.seed)
        spml = [sys.executable, "-m", "spml"]
        settings = ["--method", options.method, "--model", "small", "--size", str(options.size)]
        settings += ["--epochs", "1", "--batch-size", str(options.batch_size)]
        commands = {
            "train": [*spml, "train", str(data), "--out", trained, *settings],
            "predict": [*spml, "predict", trained, str(data), "--out", str(Path(name, "tags.parquet"))],
            "recover": [*spml, "recover", trained, "--out", str(Path(name, "labels.parquet"))],
        }
        print(f"{images:,} images, {size / MIB:.0f} MiB as JPEG", flush=True)
        used = {}
        for stage, command in commands.items():
            forget(data)
            used[stage] = one = run(command, options.limit, options.threads)
            held = f"{one.anonymous / GIB:.2f} GiB of its own"
            print(f"  {stage:8}{one.seconds:8.1f} s, {one.busy:.1f} s busy, {held}", flush=True)
        return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", default="9000,90000", help="two numbers of them")
    parser.add_argument("--side", type=int, default=64, help="pixels of the JPEG files' sides")
    parser.add_argument("--size", type=int, default=64, help="pixels they are decoded to")
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--method", default="an")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--limit", type=int, default=GIB, help="bytes a command may use")
    parser.add_argument("--start-up", type=int, default=200, help="images of the run whose time is taken off")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the temporary files go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args()
    few, many = (int(part) for part in options.images.split(","))

    sizes = (options.start_up, few, many)
    used = in_turns(lambda images: stages(images, options), sizes, 1)
    decoded = many * 3 * options.size**2
    print(f"{many:,} images decoded = {decoded / GIB:.2f} GiB, in {options.limit / GIB:.2f} GiB")
    for stage, here, there, extra in compare(used, sizes, "ms an image", 1e3):
        if options.record:
            what = {"images": many, "size": options.size, "classes": options.classes}
            extra |= {"decoded_bytes": decoded, "limit_bytes": options.limit}
            record(f"images {stage}", there, here, f"seconds an image at {few}", options.seed, **what, **extra)


if __name__ == "__main__":
    main()
