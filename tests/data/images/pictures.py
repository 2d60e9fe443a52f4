"""Makes PNG and JPEG files of every kind, as cameras, scanners and programs write them.

PNG is written here byte by byte, from random numbers, because packages write few of its kinds. JPEG needs the package pillow.
"""

import io
import itertools
import random
import struct
import zlib

WIDTH, HEIGHT = 13, 9  # all seven passes of an interlaced image have pixels
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
DEPTHS = {GREY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GREY_ALPHA: (8, 16), RGBA: (8, 16)}
# Of each pass: first column, first row, step between columns, step between rows.
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def packed_row(numbers, depth):
    if depth == 16:
        return struct.pack(f">{len(numbers)}H", *numbers)
    bits = "".join(f"{number:0{depth}b}" for number in numbers)
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def png(numbers, depth, colour, interlaced, *extra):
    """`numbers`: rows of pixels of CHANNELS[colour] numbers. `extra`: chunks before the pixels."""
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    rows = b""
    for left, top, across, down in passes:
        for row in numbers[top::down]:
            chosen = row[left::across]
            if chosen:
                rows += b"\0" + packed_row([number for pixel in chosen for number in pixel], depth)
    header = struct.pack(">IIBBBBB", len(numbers[0]), len(numbers), depth, colour, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(extra) + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


def transparency(depth, colour, numbers):
    """tRNS: of a palette, an alpha for each of its first colours; else one pixel that is transparent."""
    if colour == PALETTE:
        return chunk(b"tRNS", bytes(i * 255 // 2**depth for i in range(2**depth)))
    if colour in (GREY, RGB):
        return chunk(b"tRNS", struct.pack(f">{CHANNELS[colour]}H", *numbers[1][2]))
    return b""


def pngs():
    """Yields names and contents."""
    pick = random.Random(1)
    ways = itertools.product(CHANNELS, (False, True), ("", "gamma", "srgb", "tRNS", "background"))
    for colour, interlaced, extra in ways:
        for depth in DEPTHS[colour]:
            numbers = [[[pick.randrange(2**depth) for _ in range(CHANNELS[colour])] for _ in range(WIDTH)] for _ in range(HEIGHT)]
            chunks = {"": b"", "gamma": chunk(b"gAMA", struct.pack(">I", 100000)), "srgb": chunk(b"sRGB", b"\0"),
                      "tRNS": transparency(depth, colour, numbers), "background": b""}[extra]
            palette = chunk(b"PLTE", pick.randbytes(3 * 2**depth)) if colour == PALETTE else b""
            if extra == "background" and colour != PALETTE:
                chunks = chunk(b"bKGD", struct.pack(">H", 1) * (1 if colour in (GREY, GREY_ALPHA) else 3))
            before, after = (chunks, b"") if extra in ("gamma", "srgb") else (b"", chunks)
            name = f"colour{colour}-{depth}bit{'-interlaced' if interlaced else ''}{'-' if extra else ''}{extra}.png"
            yield name, png(numbers, depth, colour, interlaced, before, palette, after)


def short_palettes():
    """Yields names and PNG files with a pixel whose colour the palette does not have."""
    for depth, colours, interlaced in itertools.product(DEPTHS[PALETTE], (1, 2, 200), (False, True)):
        if colours < 2**depth:
            numbers = [[[colours * (x == WIDTH - 1 and y == HEIGHT - 1)] for x in range(WIDTH)] for y in range(HEIGHT)]
            palette = chunk(b"PLTE", bytes(3 * colours))
            yield f"{depth}bit-{colours}{'-interlaced' if interlaced else ''}.png", png(numbers, depth, PALETTE, interlaced, palette)


def adobe(jpeg, transform):
    """The JPEG with another transform in Adobe's segment (0: as stored, 2: YCCK), or without that segment (None)."""
    at = jpeg.index(b"\xff\xee\x00\x0eAdobe")
    segment = b"" if transform is None else jpeg[at : at + 15] + bytes([transform])
    return jpeg[:at] + segment + jpeg[at + 16 :]


def jpegs():
    """Yields names and contents."""
    from PIL import Image

    pick = random.Random(2)
    size = (4 * WIDTH, 4 * HEIGHT)
    for mode in ("L", "RGB", "CMYK"):
        small = Image.frombytes(mode, (WIDTH, HEIGHT), pick.randbytes(WIDTH * HEIGHT * len(Image.new(mode, (1, 1)).getbands())))
        picture = small.resize(size, Image.BICUBIC)
        for progressive in (False, True):
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=90, progressive=progressive)
            name = mode.lower() + ("-progressive" if progressive else "")
            yield f"{name}.jpg", file.getvalue()
            if mode == "CMYK":
                yield f"{name}-without-marker.jpg", adobe(file.getvalue(), None)
                yield f"{name}-ycck.jpg", adobe(file.getvalue(), 2)
