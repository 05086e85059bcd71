"""Miniatures of published data sets in their official layouts."""

import json
from pathlib import Path
from typing import Any

from support.pictures import picture

Objects = list[tuple[str, tuple[int, int, int, int], bool]]
VOC: dict[str, dict[str, Objects]] = {
    "train": {
        "2008_000003": [
            ("train", (0, 0, 20, 10), False),
            ("person", (0, 0, 4, 5), False),
            ("person", (0, 0, 10, 5), False),
        ],
        "2008_000001": [("cat", (0, 0, 20, 10), False), ("dog", (0, 0, 2, 2), True)],
        "2008_000009": [("bird", (0, 0, 4, 4), True)],
        "2008_000002": [
            ("aeroplane", (0, 0, 4, 4), False),
            ("person", (1, 1, 3, 3), True),
            ("person", (2, 2, 4, 4), False),
        ],
        "2008_000005": [
            ("sofa", (0, 0, 4, 4), False),
            ("tvmonitor", (0, 0, 4, 4), False),
            ("chair", (0, 0, 4, 4), False),
        ],
        "2008_000006": [("car", (0, 0, 4, 4), False)],
    },
    "val": {"2009_000007": [("bus", (0, 0, 4, 4), False)], "2009_000004": [("boat", (0, 0, 4, 4), False)]},
}


def write_voc(folder: Path) -> Path:
    root = folder / "VOCdevkit" / "VOC2012"
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "Annotations").mkdir()
    for part, images in VOC.items():
        (root / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(images) + "\n")
        for image, objects in images.items():
            picture(root / "JPEGImages" / f"{image}.jpg")
            things = "".join(
                f"<object><name>{name}</name><difficult>{difficult:d}</difficult><bndbox>"
                + "".join(f"<{c}>{v}</{c}>" for c, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
                + "</bndbox><part><name>head</name></part></object>"
                for name, box, difficult in objects
            )
            size = "<size><width>20</width><height>10</height><depth>3</depth></size>"
            (root / "Annotations" / f"{image}.xml").write_text(
                f"<annotation><filename>{image}.jpg</filename>{size}{things}</annotation>"
            )
    return folder


def write_coco(folder: Path) -> Path:
    categories = [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}, {"id": 90, "name": "toothbrush"}]
    images = {
        "train2014": {9: [1, 1, 3], 10: [90], 100: [3, 90], 25: [], 36: [1]},
        "val2014": {42: [3], 7: [1, 90], 8: []},
    }
    (folder / "annotations").mkdir()
    for part, content in images.items():
        annotations: list[dict[str, Any]] = []
        for image, found in content.items():
            picture(folder / part / f"COCO_{part}_{image:012d}.jpg", image)
            annotations += [{"image_id": image, "category_id": c, "bbox": [0, 0, 1, 1], "iscrowd": 0} for c in found]
        listed = [{"id": image, "file_name": f"COCO_{part}_{image:012d}.jpg"} for image in content]
        text = json.dumps({"images": listed, "annotations": annotations[::-1], "categories": categories})
        (folder / "annotations" / f"instances_{part}.json").write_text(text)
    return folder


def write_nuswide(folder: Path) -> Path:
    labels = folder / "Groundtruth" / "TrainTestLabels"
    labels.mkdir(parents=True)
    (folder / "ImageList").mkdir()
    for part, rows in (("Train", 6), ("Test", 4)):
        names = [f"actor\\{row:04d}_{part}.jpg" for row in range(rows)]
        (folder / "ImageList" / f"{part}Imagelist.txt").write_text("\r\n".join(names) + "\r\n")
        for name in names:
            picture(folder / "Flickr" / name.replace("\\", "/"))
        for place, concept in enumerate(("airport", "sky", "zebra")):
            lines = [
                str(int(row % 3 == place or (row == 1 and place == 2))) if row != 3 else "0" for row in range(rows)
            ]
            (labels / f"Labels_{concept}_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_cub(folder: Path) -> Path:
    root = folder / "CUB_200_2011"
    (root / "attributes").mkdir(parents=True)
    names = [f"00{row % 2 + 1}.Bird/Bird_{row}.jpg" for row in range(8)]
    for name in names:
        picture(root / "images" / name)
    (root / "images.txt").write_text("".join(f"{row + 1} {name}\n" for row, name in enumerate(names)))
    (root / "train_test_split.txt").write_text("".join(f"{row + 1} {int(row != 2 and row < 7)}\n" for row in range(8)))
    attributes = ["has_bill_shape::curved_(up_or_down)", "has_wing_color::blue", "has_size::small"]
    (folder / "attributes.txt").write_text("".join(f"{a + 1} {name}\n" for a, name in enumerate(attributes)))
    lines = []
    for row in range(8):
        for attribute in range(3):
            present = int((row + attribute) % 2 == 0)
            extra = " 0 1.5" if (row, attribute) == (4, 0) else ""  # the real file has such lines
            lines.append(f"{row + 1} {attribute + 1} {present} {(row + attribute) % 4 + 1} 12.{row}{extra}\n")
    (root / "attributes" / "image_attribute_labels.txt").write_text("".join(lines))
    return folder
