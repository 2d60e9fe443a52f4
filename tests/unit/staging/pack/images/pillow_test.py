#!/usr/bin/python3
"""Pictures of every kind have the same pixels here and with Pillow's convert("RGB").

  pillow_test.py decode_picture      exits with 77 if Pillow is missing
"""

import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "data/images"))
import pictures

try:
    from PIL import Image
except ImportError:
    print("skipped: python3-pil is not installed")
    sys.exit(77)

DECODE = pathlib.Path(sys.argv.pop(1)).resolve()
warnings.simplefilter("ignore")  # Pillow advises another mode for palettes with transparency


def decoded(content, folder):
    file = pathlib.Path(folder) / "picture"
    file.write_bytes(content)
    output = subprocess.run([DECODE, file], stdout=subprocess.PIPE, check=True).stdout
    size, pixels = output.split(b"\n", 1)
    height, width = map(int, size.split())
    return (width, height), pixels


def of_pillow(content):
    picture = Image.open(io.BytesIO(content))
    if picture.mode.startswith("I"):
        # Grey of 16 bits: convert() would make every value above 255 white.
        return picture.size, bytes(part for grey in picture.getdata() for part in [grey >> 8] * 3)
    return picture.size, picture.convert("RGB").tobytes()


class Pillow(unittest.TestCase):
    def compare(self, made, allowed):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in made:
                with self.subTest(name):
                    size, pixels = decoded(content, folder)
                    wanted_size, wanted = of_pillow(content)
                    self.assertEqual((size, len(pixels)), (wanted_size, len(wanted)))
                    self.assertLessEqual(max(abs(x - y) for x, y in zip(pixels, wanted)), allowed)

    def test_png(self):
        self.compare(pictures.pngs(), 0)

    # Pillow's version decides on their colour: a grey, or black.
    def test_a_png_with_a_pixel_beyond_its_palette_is_refused(self):
        for name, content in pictures.short_palettes():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / "picture"
                file.write_bytes(content)
                refused = subprocess.run([DECODE, file], capture_output=True, text=True)
                self.assertEqual(refused.returncode, 1)
                self.assertRegex(refused.stderr, f"^cannot decode PNG: pixel {pictures.WIDTH * pictures.HEIGHT - 1} has the colour \\d+ of a palette of \\d+\n$")

    # Pillow may bring another libjpeg, which rounds in other places.
    def test_jpeg(self):
        self.compare(pictures.jpegs(), 1)


if __name__ == "__main__":
    unittest.main()
