"""Every format and kind of pixel comes out as what a person sees."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import numpy as np
from PIL import Image

from dragoman.pictures.decoding import decode_picture
from dragoman.pictures.limits import PictureLimits
from tests.pictures.drawing import Pixels, colours, drawn, encoded, pixels_of, png
from tests.support.tables import table

LIMITS = PictureLimits()


def decoded(data: bytes) -> Pixels:
    return pixels_of(decode_picture(data, LIMITS, "image"))


def chunk(name: bytes, content: bytes) -> bytes:
    """One chunk of a png file."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_file(width: int, height: int, depth: int, colour_type: int, rows: bytes, *more: bytes) -> bytes:
    """A png file written by hand, for kinds that Pillow reads and does not write."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class TestFormats:
    @table(("kind", "facts"), [("png", {}), ("bmp", {}), ("webp", {"lossless": True})])
    def test_a_format_without_loss_gives_the_very_pixels(self, kind: str, facts: dict[str, bool]) -> None:
        assert (decoded(encoded(drawn(), kind, **facts)) == colours()).all()

    @table("facts", [{}, {"progressive": True}, {"subsampling": 0, "optimize": True}])
    def test_jpeg_gives_nearly_the_pixels(self, facts: dict[str, int]) -> None:
        smooth = np.add.outer(np.arange(32) * 3, np.arange(48) * 2).astype(np.uint8)
        image = Image.fromarray(np.stack([smooth, smooth // 2, 255 - smooth], axis=2))
        got = decoded(encoded(image, "jpeg", quality=95, **facts)).astype(int)
        assert got.shape == (32, 48, 3)
        assert np.abs(got - np.asarray(image).astype(int)).mean() < 3

    @table(("kind", "facts"), [("gif", {}), ("webp", {"lossless": True}), ("png", {})])
    def test_of_an_animation_the_first_frame_counts(self, kind: str, facts: dict[str, bool]) -> None:
        frames = [Image.new("RGB", (3, 2), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=10, **facts)
        assert decoded(data).tolist() == [[[200, 0, 0]] * 3] * 2

    def test_one_pixel(self) -> None:
        picture = decode_picture(encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "png"), LIMITS, "image")
        assert (picture.width, picture.height, picture.rgb) == (1, 1, b"\x01\x02\x03")

    def test_what_the_client_calls_it_does_not_matter(self) -> None:
        assert (decoded(encoded(drawn(), "bmp")) == decoded(png())).all()


class TestModes:
    def test_grey(self) -> None:
        grey = colours(channels=1)
        assert (decoded(encoded(Image.fromarray(grey[:, :, 0]), "png")) == grey.repeat(3, axis=2)).all()

    def test_black_and_white(self) -> None:
        image = Image.new("1", (2, 1))
        image.putpixel((1, 0), 1)
        for kind in ("png", "bmp"):
            assert decoded(encoded(image, kind)).tolist() == [[[0, 0, 0], [255, 255, 255]]]

    def test_palette(self) -> None:
        image = drawn().quantize(64)
        for kind in ("png", "gif", "bmp"):
            assert (decoded(encoded(image, kind)) == colours()).all()

    def test_16_bit_grey_keeps_its_high_byte(self) -> None:
        values = np.array([[0, 255, 256, 0x1234], [0x7FFF, 0x8000, 0xFF00, 0xFFFF]], dtype=np.uint16)
        got = decoded(encoded(Image.fromarray(values), "png"))
        assert got[:, :, 0].tolist() == [[0, 0, 1, 0x12], [0x7F, 0x80, 0xFF, 0xFF]]
        assert (got == got[:, :, :1]).all()

    def test_16_bit_colour_keeps_its_high_byte(self) -> None:
        rows = b"\0" + struct.pack(">6H", 0x0102, 0x8001, 0xFFFF, 0x00FF, 0x7FFF, 0x1234)
        assert decoded(png_file(2, 1, 16, 2, rows)).tolist() == [[[1, 0x80, 255], [0, 0x7F, 0x12]]]

    def test_cmyk(self) -> None:
        inks = Image.new("CMYK", (16, 16), (255, 0, 0, 0))  # cyan alone
        got = decoded(encoded(inks, "jpeg", quality=100)).astype(int)
        assert np.abs(got - [0, 255, 255]).max() <= 3


class TestTransparency:
    """What is transparent stands over white, and not over the colour that lies hidden there."""

    def test_alpha(self) -> None:
        image = Image.new("RGBA", (3, 1))
        for place, colour in enumerate([(10, 20, 30, 0), (10, 20, 30, 255), (0, 0, 0, 128)]):
            image.putpixel((place, 0), colour)
        for kind, facts in (("png", {}), ("webp", {"lossless": True, "exact": True})):
            assert decoded(encoded(image, kind, **facts)).tolist() == [[[255] * 3, [10, 20, 30], [127] * 3]]

    def test_grey_with_alpha(self) -> None:
        image = Image.new("LA", (2, 1))
        image.putpixel((1, 0), (40, 255))
        assert decoded(encoded(image, "png")).tolist() == [[[255] * 3, [40] * 3]]

    def test_16_bit_grey_with_alpha(self) -> None:
        rows = b"\0" + struct.pack(">4H", 0x1234, 0, 0x5678, 0xFFFF)
        assert decoded(png_file(2, 1, 16, 4, rows)).tolist() == [[[255] * 3, [0x56] * 3]]

    def test_an_entry_of_the_palette(self) -> None:
        image = Image.new("P", (2, 1))
        image.putpalette([9, 9, 9, 40, 50, 60])
        image.putpixel((1, 0), 1)
        for kind in ("png", "gif"):
            assert decoded(encoded(image, kind, transparency=0)).tolist() == [[[255] * 3, [40, 50, 60]]]

    def test_half_transparent_entries_of_the_palette(self) -> None:
        image = Image.new("P", (2, 1))
        image.putpalette([0, 0, 0, 40, 50, 60])
        image.putpixel((1, 0), 1)
        assert decoded(encoded(image, "png", transparency=b"\x80\xff")).tolist() == [[[127] * 3, [40, 50, 60]]]

    def test_a_colour_that_stands_for_nothing(self) -> None:
        image = Image.new("RGB", (2, 1), (1, 2, 3))
        image.putpixel((1, 0), (4, 5, 6))
        assert decoded(encoded(image, "png", transparency=(1, 2, 3))).tolist() == [[[255] * 3, [4, 5, 6]]]
        grey = Image.new("L", (2, 1), 7)
        grey.putpixel((1, 0), 8)
        assert decoded(encoded(grey, "png", transparency=7)).tolist() == [[[255] * 3, [8] * 3]]

    def test_a_16_bit_grey_that_stands_for_nothing(self) -> None:
        values = Image.fromarray(np.array([[0x1234, 0x1235]], dtype=np.uint16))
        assert decoded(encoded(values, "png", transparency=0x1234)).tolist() == [[[255] * 3, [0x12] * 3]]


# What a viewer does to the stored pixels. Source: EXIF 2.32, 4.6.4.
UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.transpose(1, 0, 2),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).transpose(1, 0, 2),
    8: lambda stored: np.rot90(stored, 1),
}


class TestOrientation:
    @table("orientation", range(1, 9))
    @table("kind", ["png", "webp"])
    def test_a_picture_stands_upright(self, kind: str, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        facts = {"lossless": True} if kind == "webp" else {}
        got = decoded(encoded(drawn(), kind, exif=exif, **facts))
        assert np.array_equal(got, UPRIGHT[orientation](colours()))

    @table("orientation", range(1, 9))
    def test_a_photograph_stands_upright(self, orientation: int) -> None:
        image = drawn().resize((40, 32), Image.Resampling.NEAREST)
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = decoded(encoded(image, "jpeg"))
        assert np.array_equal(decoded(encoded(image, "jpeg", exif=exif)), UPRIGHT[orientation](stored))

    @table("orientation", [0, 9, 65535])
    def test_an_orientation_that_does_not_exist_changes_nothing(self, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        assert (decoded(encoded(drawn(), "png", exif=exif)) == colours()).all()

    def test_exif_data_that_cannot_be_read_change_nothing(self) -> None:
        for broken in (b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0nonsense", b"Exif\0\0", b"MM\0*\xff\xff\xff\xff"):
            assert (decoded(encoded(drawn(), "png", exif=broken)) == colours()).all()
            assert decoded(encoded(drawn(), "jpeg", exif=broken)).shape == (4, 5, 3)


class TestDigest:
    def test_it_is_that_of_size_and_pixels(self) -> None:
        picture = decode_picture(png(), LIMITS, "image")
        assert picture.digest == blake2b(b"5x4:" + colours().tobytes(), digest_size=16).hexdigest()

    def test_the_file_does_not_matter_and_the_shape_does(self) -> None:
        one, same, other = (
            decode_picture(data, LIMITS, "image").digest
            for data in (
                png(6, 4),
                encoded(drawn(6, 4), "bmp"),
                encoded(Image.fromarray(colours(6, 4).reshape(6, 4, 3)), "png"),
            )
        )
        assert one == same
        assert one != other


def test_several_threads_decode_at_a_time() -> None:
    files = [png(40 + size, 30) for size in range(16)]
    with ThreadPoolExecutor(8) as pool:
        pictures = list(pool.map(lambda data: decode_picture(data, LIMITS, "image"), files * 4))
    assert [picture.width for picture in pictures] == [40 + size for size in range(16)] * 4
    assert all((pixels_of(one) == colours(one.width, 30)).all() for one in pictures)


def test_pillow_writes_no_warnings_about_odd_files() -> None:
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\xff\xff\xff\xff\xff\xff\xff"
    files = [encoded(drawn(), "jpeg", exif=exif), png_file(30_000, 4_000, 8, 2, b"")]
    program = (
        "import sys, warnings\n"
        "from dragoman.errors import InvalidRequest\n"
        "from dragoman.pictures.decoding import decode_picture\n"
        "from dragoman.pictures.limits import PictureLimits\n"
        f"for data in {files!r}:\n"
        "    try: decode_picture(data, PictureLimits(), 'image')\n"
        "    except InvalidRequest: pass\n"
        "warnings.warn('this one is')\n"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert [line for line in done.stderr.splitlines() if "Warning" in line] == ["<string>:8: UserWarning: this one is"]


def test_the_odd_file_above_makes_pillow_warn() -> None:
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\xff\xff\xff\xff\xff\xff\xff"
    data = encoded(drawn(), "jpeg", exif=exif)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Image.open(io.BytesIO(data)).getexif()
    assert caught
