"""Writes tests/golden/pictures and what Pillow makes of them, for the tests of pictures. Five that Pillow cannot write
lie there already.

Needs Pillow, numpy and safetensors.
"""
import struct
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from safetensors.numpy import save_file

OUT = Path(__file__).parent / "pictures"
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

# Turned as a viewer turns it: by Pillow, with the orientation in an EXIF block of its own.
for orientation in range(2, 9):
    image = Image.fromarray(rgb)
    image.getexif()[0x0112] = orientation
    expected[f"orientation{orientation}"] = np.asarray(ImageOps.exif_transpose(image))
expected["exif_orientation_6.jpg"] = np.asarray(ImageOps.exif_transpose(Image.open(OUT / "exif_orientation_6.jpg")))

# Inks. Pillow writes an Adobe segment of 16 bytes behind the first two; its byte 15 says 0, CMYK, and 2 says YCCK.
inks = np.dstack([rgb, 255 - alpha])
save("cmyk.jpg", Image.fromarray(inks, mode="CMYK"), quality=95, subsampling=0)
ycc = np.asarray(Image.fromarray(rgb).convert("YCbCr"))
save("ycck.jpg", Image.fromarray(255 - np.dstack([ycc, alpha]), mode="CMYK"), quality=95, subsampling=0)
ycck = bytearray((OUT / "ycck.jpg").read_bytes())
assert ycck[2:4] == b"\xff\xee" and ycck[6:11] == b"Adobe" and ycck[17] == 0
ycck[17] = 2
(OUT / "ycck.jpg").write_bytes(ycck)
for name in ("cmyk.jpg", "ycck.jpg", "cmyk_without_adobe_marker.jpg"):
    expected[name] = np.asarray(Image.open(OUT / name).convert("RGB"))


def bmp(name, header, bits, rows, palette=b"", compression=0, masks=b"", top_down=False):
    """Pillow writes few kinds of BMP but reads many. rows: the bytes of each, the uppermost first."""
    rows = [row + bytes(-len(row) % 4) for row in rows]
    pixels = b"".join(rows if top_down else rows[::-1])
    height = -HEIGHT if top_down else HEIGHT
    if header == 12:
        info = struct.pack("<IHHHH", 12, WIDTH, height, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, WIDTH, height, 1, bits, compression, len(pixels), 0, 0, 0, 0)
        info += masks
        info += bytes(max(0, header - len(info)))
    offset = 14 + len(info) + len(palette)
    file = b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) + info + palette + pixels
    (OUT / name).write_bytes(file)
    image = Image.open(OUT / name)
    expected[name] = np.asarray(image if image.mode == "RGBA" else image.convert("RGB"))


def packed(bits):
    """Indices that repeat 0, 1, ... along each row, as many in a byte as fit."""
    indices = (x + y) % (1 << bits)
    per_byte = 8 // bits
    shifts = np.arange(per_byte)[::-1] * bits
    return [(row.reshape(-1, per_byte) << shifts).sum(1).astype(np.uint8).tobytes()
            for row in np.pad(indices, ((0, 0), (0, -WIDTH % per_byte)))]


n = np.arange(256)
colours = np.stack([n * 7 % 256, n * 11 % 256, 255 - n], axis=-1).astype(np.uint8)
four = np.pad(colours, ((0, 0), (0, 1)))
words565 = (rgb[..., 0] >> 3).astype(np.uint16) << 11 | (rgb[..., 1] >> 2).astype(np.uint16) << 5 | rgb[..., 2] >> 3
words555 = (rgb[..., 0] >> 3).astype(np.uint16) << 10 | (rgb[..., 1] >> 3).astype(np.uint16) << 5 | rgb[..., 2] >> 3
bgra = np.dstack([rgb[..., ::-1], alpha])
bmp("os2_8.bmp", 12, 8, packed(8), colours.tobytes())
bmp("os2_1.bmp", 12, 1, packed(1), colours[:2].tobytes())
bmp("palette_1.bmp", 40, 1, packed(1), four[:2].tobytes(), top_down=True)
bmp("palette_4.bmp", 40, 4, packed(4), four[:16].tobytes())
bmp("palette_8.bmp", 40, 8, packed(8), four.tobytes(), top_down=True)
bmp("rgb_555.bmp", 40, 16, [r.astype("<u2").tobytes() for r in words555], top_down=True)
bmp("rgb_565.bmp", 40, 16, [r.astype("<u2").tobytes() for r in words565], compression=3,
    masks=struct.pack("<III", 0xf800, 0x7e0, 0x1f))
bmp("rgbx_32.bmp", 40, 32, [r.tobytes() for r in bgra])
bmp("rgba_32.bmp", 108, 32, [r.tobytes() for r in bgra], compression=3, top_down=True,
    masks=struct.pack("<IIII", 0xff0000, 0xff00, 0xff, 0xff000000))
for name in ("palette_index_beyond.png", "palette_index_beyond.bmp", "top_down.bmp"):
    expected[name] = np.asarray(Image.open(OUT / name).convert("RGB"))
save_file({name: np.ascontiguousarray(value) for name, value in expected.items()}, OUT / "expected.safetensors")
