"""A folder of images that does not fit into memory: seconds per image, compared with a tenth of the images.

    python benchmarks/images.py                       # 9,000 and 90,000 images at 64 pixels, 1 GiB
    python benchmarks/images.py --images 500,5000     # a quick try

Runs `spml train` (one epoch of the network `small`), `spml predict` and `spml recover`, each in a control group with a
memory limit that includes the page cache: the decoded images of the larger folder do not fit. Seconds per image exclude
the time of a run on few images, which is the start-up time. The images are synthetic JPEG files, one folder per class,
in a temporary folder that is deleted.
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
    """Write `folder/<class>/<number>.jpg`: discs in the colours of its class and of another, on soft noise.

    Returns the total number of bytes.
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
    """Drop the files from the page cache, so that the next command reads them from disk."""
    os.sync()  # dirty pages cannot be dropped
    for file in folder.rglob("*.jpg"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def stages(images: int, options: argparse.Namespace) -> dict[str, Used]:
    """Run each command on this many images."""
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
    parser.add_argument("--images", default="9000,90000", help="two numbers of images")
    parser.add_argument("--side", type=int, default=64, help="side of the JPEG files in pixels")
    parser.add_argument("--size", type=int, default=64, help="side of the decoded images in pixels")
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--method", default="an")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--limit", type=int, default=GIB, help="memory limit of a command in bytes")
    parser.add_argument("--start-up", type=int, default=200, help="images of the run that measures the start-up time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args()
    few, many = (int(part) for part in options.images.split(","))

    sizes = (options.start_up, few, many)
    used = in_turns(lambda images: stages(images, options), sizes, 1)
    decoded = many * 3 * options.size**2
    print(f"{many:,} images decoded = {decoded / GIB:.2f} GiB, in {options.limit / GIB:.2f} GiB")
    for stage, here, there, extra in compare(used, sizes, "ms per image", 1e3):
        if options.record:
            what = {"images": many, "size": options.size, "classes": options.classes}
            extra |= {"decoded_bytes": decoded, "limit_bytes": options.limit}
            record(f"images {stage}", there, here, f"seconds per image at {few}", options.seed, **what, **extra)


if __name__ == "__main__":
    main()
