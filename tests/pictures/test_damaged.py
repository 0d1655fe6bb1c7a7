"""Files that are no pictures, too large, cut off or mutated: one line for the client, and nothing else happens."""

from __future__ import annotations

import io
import struct
import time
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dragoman.errors import InvalidRequest
from dragoman.pictures.decoding import ORIENTATION, decode_picture, measure_picture
from dragoman.pictures.limits import PictureFault, PictureLimits
from tests.pictures.drawing import drawn, encoded, pixels_of, png
from tests.pictures.test_decoding import chunk, png_file
from tests.support.tables import table
from tests.support.tiers import examples

LIMITS = PictureLimits()
NAME = "messages[0].content[1].image_url.url"

FILES = {
    "png": png(9, 7),
    "grey png": encoded(Image.new("I;16", (9, 7)), "png"),
    "palette png": encoded(drawn(9, 7).quantize(16), "png", transparency=b"\0\x80"),
    "animated png": encoded(drawn(9, 7), "png", save_all=True, append_images=[drawn(9, 7).rotate(180)]),
    "jpeg": encoded(drawn(33, 17), "jpeg", exif=Image.Exif()),
    "progressive jpeg": encoded(drawn(33, 17), "jpeg", progressive=True),
    "cmyk jpeg": encoded(drawn(33, 17).convert("CMYK"), "jpeg"),
    "gif": encoded(drawn(9, 7), "gif", save_all=True, append_images=[drawn(9, 7).rotate(180)]),
    "bmp": encoded(drawn(9, 7), "bmp"),
    "webp": encoded(drawn(33, 17), "webp"),
    "lossless webp": encoded(drawn(9, 7).convert("RGBA"), "webp", lossless=True),
    "animated webp": encoded(drawn(9, 7), "webp", save_all=True, append_images=[drawn(9, 7).rotate(180)]),
}


def refused(data: bytes, limits: PictureLimits = LIMITS) -> PictureFault:
    with pytest.raises(PictureFault) as caught:
        decode_picture(data, limits, NAME)
    fault = caught.value
    assert isinstance(fault, InvalidRequest)
    assert fault.param == NAME
    assert fault.message.startswith(f"{NAME} must ")
    assert "\n" not in fault.message
    return fault


def gif_screen(width: int, height: int) -> bytes:
    """A gif file's head, and a frame that is hardly there."""
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + b",\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;"


class TestNoPicture:
    @table(
        "data",
        [
            b"", b"x", b"this is text", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"II*\0\x08\0\0\0",
            b"%!PS-Adobe-3.0 EPSF-3.0", b"\0\0\x01\0\x01\0", b"P6 1 1 255 abc", b"RIFF\0\0\0\0WAVE", bytes(1000),
        ],
    )  # fmt: skip
    def test_other_files_are_refused(self, data: bytes) -> None:
        fault = refused(data)
        assert fault.problem == "content"
        assert "a png, jpeg, webp, gif or bmp image" in fault.message

    @table("kind", ["tiff", "ppm", "ico", "tga", "eps", "pdf"])
    def test_formats_that_pillow_reads_as_well_are_refused(self, kind: str) -> None:
        assert refused(encoded(drawn(32, 32), kind)).problem == "content"


class TestTooLarge:
    @table(
        "data",
        [
            png_file(2**31 - 1, 2**31 - 1, 8, 2, b""),
            png_file(50_001, 1000, 8, 2, b""),
            gif_screen(65_535, 65_535),
            b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 40_000, 40_000, 1, 24, 0, 0, 0, 0, 0, 0),
            b"\xff\xd8\xff\xc0\0\x11\x08" + struct.pack(">HH", 60_000, 60_000)
            + b"\x03\x01\x11\0\x02\x11\0\x03\x11\0\xff\xda",
            b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xfe\x3f\0" * 2,
        ],
    )  # fmt: skip
    def test_a_head_that_promises_too_much_is_refused_before_anything_is_decoded(self, data: bytes) -> None:
        began = time.process_time()
        refused(data)
        assert time.process_time() - began < 1  # decoding would take minutes, and gigabytes

    def test_the_message_says_what_is_allowed(self) -> None:
        fault = refused(png(20, 10), PictureLimits(max_pixels=199))
        assert fault.problem == "size"
        assert fault.message == f"{NAME} must be an image of at most 199 pixels and 65535 on a side, got 20 x 10"
        assert decode_picture(png(20, 10), PictureLimits(max_pixels=200), NAME).width == 20

    def test_sides_have_a_limit_too(self) -> None:
        assert refused(png_file(65_536, 1, 8, 0, b"\0" + bytes(65_536))).problem == "size"
        assert decode_picture(png_file(65_535, 1, 8, 0, b"\0" + bytes(65_535)), LIMITS, NAME).width == 65_535

    def test_a_small_file_of_many_pixels_is_refused_although_it_is_whole(self) -> None:
        data = encoded(Image.new("L", (3000, 3000)), "png")
        assert len(data) < 20_000
        assert refused(data, PictureLimits(max_pixels=8_999_999)).problem == "size"

    def test_runs_that_would_take_python_seconds_are_refused(self) -> None:
        def runs(width: int, height: int) -> bytes:
            colours, rows = bytes(4) * 256, (bytes([1, 7]) * width + b"\0\0") * height + b"\0\1"
            sizes = (40, width, height, 1, 8, 1, len(rows), 0, 0, 256, 256)
            head = struct.pack("<IHHI", 54 + 1024 + len(rows), 0, 0, 54 + 1024) + struct.pack("<IiiHHIIiiII", *sizes)
            return b"BM" + head + colours + rows

        assert decode_picture(runs(30, 20), LIMITS, NAME).height == 20
        assert refused(runs(1000, 600)).problem == "size"

    def test_what_decoding_takes_is_told_by_the_head(self) -> None:
        image = Image.new("RGB", (300, 200))
        baseline, progressive = encoded(image, "jpeg"), encoded(image, "jpeg", progressive=True)
        scan = baseline.index(b"\xff\xda")
        first_alone = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0"  # the head of a scan of one component
        one_by_one = baseline[:scan] + first_alone + baseline[scan + 14 :]
        for data, num_bytes in (
            (baseline, 12),
            (encoded(image, "png")[:60], 12),
            (encoded(image, "gif"), 12),
            (encoded(image, "bmp"), 12),
            (progressive, 20),
            (one_by_one, 20),
            (encoded(image, "webp"), 20),
        ):
            assert measure_picture(data, LIMITS, NAME) == (60_000, num_bytes * 60_000)

    def test_a_jpeg_of_up_to_four_times_the_pixels_is_decoded_at_half_its_sides(self) -> None:
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        image = Image.linear_gradient("L").resize((60, 40)).convert("RGB")
        data = encoded(image, "jpeg", quality=95, exif=exif)
        for limits in (PictureLimits(max_pixels=2399), PictureLimits(max_pixels=600)):
            assert measure_picture(data, limits, NAME).num_pixels == 600
            picture = decode_picture(data, limits, NAME)
            assert (picture.width, picture.height) == (20, 30)
            expected = np.asarray(image.reduce(2).transpose(Image.Transpose.ROTATE_270)).astype(int)
            assert np.abs(pixels_of(picture).astype(int) - expected).mean() < 3
        limits = PictureLimits(max_pixels=2399)
        for other in (encoded(image, "png"), encoded(image, "jpeg", progressive=True), encoded(image, "webp")):
            assert refused(other, limits).problem == "size"
        assert refused(data, PictureLimits(max_pixels=599)).problem == "size"

    def test_an_animation_costs_no_more_than_its_first_frame(self) -> None:
        frames = [Image.new("P", (64, 64), number % 256) for number in range(300)]
        data = encoded(frames[0], "gif", save_all=True, append_images=frames[1:])
        assert decode_picture(data, PictureLimits(max_pixels=64 * 64), NAME).width == 64

    def test_a_jpeg_of_thousands_of_scans_is_refused(self) -> None:
        data = encoded(Image.new("RGB", (1000, 1000)), "jpeg", progressive=True)
        last_scan = data[data.rindex(b"\xff\xda") : -2]
        fault = refused(data[:-2] + last_scan * 2000 + data[-2:])
        assert fault.problem == "size"
        assert "scans" in fault.message

    def test_text_that_unpacks_to_much_is_not_unpacked(self) -> None:
        text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100_000_000)))
        assert refused(png_file(1, 1, 8, 0, b"\0\0", text)).problem == "content"


class TestDamaged:
    @table("kind", FILES)
    def test_a_file_that_is_cut_off_is_refused(self, kind: str) -> None:
        data = FILES[kind]
        for length in (len(data) // 2, 30, 12, 4):
            assert refused(data[:length]).problem == "content"

    @table("kind", FILES)
    def test_whole_files_are_taken(self, kind: str) -> None:
        assert decode_picture(FILES[kind], LIMITS, NAME).width in (9, 33)

    def test_a_size_of_nothing_is_refused(self) -> None:
        refused(png_file(0, 5, 8, 2, b""))

    @settings(max_examples=examples(400))
    @given(data=st.data())
    def test_a_mutated_file_is_a_picture_or_a_fault(self, data: st.DataObject) -> None:
        file = bytearray(FILES[data.draw(st.sampled_from(sorted(FILES)))])
        for _ in range(data.draw(st.integers(1, 8))):
            place = data.draw(st.integers(0, len(file) - 1))
            match data.draw(st.integers(0, 3)):
                case 0:
                    file[place] = data.draw(st.integers(0, 255))
                case 1:
                    file[place : place + 4] = data.draw(st.binary(min_size=0, max_size=8))
                case 2:
                    file[place : place + data.draw(st.integers(1, 40))] = b""
                case _:
                    file[place : place + 4] = data.draw(
                        st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
                    )
            file = file or bytearray(b"\0")
        self.check(bytes(file))

    @settings(max_examples=examples(200))
    @given(head=st.sampled_from([data[:16] for data in FILES.values()]), rest=st.binary(max_size=300))
    def test_anything_behind_a_head_is_a_picture_or_a_fault(self, head: bytes, rest: bytes) -> None:
        self.check(head + rest)

    @staticmethod
    def check(data: bytes) -> None:
        with suppress(PictureFault):
            picture = decode_picture(data, PictureLimits(max_pixels=1_000_000), NAME)
            assert len(picture.rgb) == picture.width * picture.height * 3 > 0


def test_the_files_of_the_tests_are_what_they_are_called() -> None:
    assert Image.open(io.BytesIO(FILES["grey png"])).mode == "I;16"
    assert Image.open(io.BytesIO(FILES["cmyk jpeg"])).mode == "CMYK"
    assert all(
        getattr(Image.open(io.BytesIO(FILES[f"animated {kind}"])), "n_frames", 1) == 2 for kind in ("png", "webp")
    )
