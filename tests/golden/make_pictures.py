"""Writes tests/golden/pictures/* and what Pillow makes of them, for tests/picture_test.cpp.

Needs Pillow, numpy and safetensors.
"""
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

OUT = Path(__file__).parent / "pictures"
OUT.mkdir(exist_ok=True)
HEIGHT, WIDTH = 24, 20

y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
grey = (x * 12 + (y * 7) % 23).astype(np.uint8)
rgb = np.stack([x * 12, y * 10, 255 - (x + y) * 5], axis=-1).astype(np.uint8)
alpha = ((x + y) * 255 // (HEIGHT + WIDTH - 2)).astype(np.uint8)
expected = {}


def save(name, image, **options):
    image.save(OUT / name, **options)
    return image


save("grey.png", Image.fromarray(grey))
save("rgb.png", Image.fromarray(rgb))
save("rgb.bmp", Image.fromarray(rgb))
save("rgb.ppm", Image.fromarray(rgb))
save("grey.pgm", Image.fromarray(grey))
save("rgba.png", Image.fromarray(np.dstack([rgb, alpha])))
save("grey_alpha.png", Image.fromarray(np.dstack([grey, alpha]), mode="LA"))
save("grey16.png", Image.fromarray(grey.astype(np.uint16) * 256 + 200))
palette = save("palette.png", Image.fromarray(rgb).quantize(8))
save("baseline.jpg", Image.fromarray(rgb), quality=90)
save("progressive.jpg", Image.fromarray(rgb), quality=90, progressive=True)
save("grey.jpg", Image.fromarray(grey), quality=90)

expected["grey"] = grey
expected["rgb"] = rgb
expected["alpha"] = alpha
expected["palette"] = np.asarray(palette.convert("RGB"))
for name in ("baseline.jpg", "progressive.jpg", "grey.jpg"):
    expected[name] = np.asarray(Image.open(OUT / name))
expected["luma"] = np.asarray(Image.fromarray(rgb).convert("L"))
for name, image in (("grey", grey), ("rgb", rgb)):
    for height, width in ((12, 10), (7, 9), (48, 30)):
        resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
        expected[f"{name}.{height}x{width}"] = np.asarray(resized)
save_file({name: np.ascontiguousarray(value) for name, value in expected.items()}, OUT / "expected.safetensors")
