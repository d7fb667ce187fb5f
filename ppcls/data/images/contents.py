"""Names the contents of files that can't be decoded, so that users see what they have instead of an image."""

from __future__ import annotations

import re

from ppcls.data.images.header import NO_IMAGE

_CONVERT = "convert the image to JPEG or PNG"
# First bytes of image formats that are not supported (at any position in the first 12 bytes for ISO media)
_IMAGES = (
    (rb"GIF8", "a GIF"),
    (rb"....ftyp(heic|heix|heim|heis|hevc|hevx|mif1|msf1)", "a HEIC image"),
    (rb"....ftyp(avif|avis)", "an AVIF image"),
    (rb"....ftypcrx ", "a raw image of a camera (CR3)"),
    (rb"FUJIFILMCCD-RAW", "a raw image of a camera (RAF)"),
    (rb"\xff\x0a|\0\0\0\x0cJXL ", "a JPEG XL image"),
    (rb"II\xbc", "a JPEG XR image"),
    (rb"8BPS", "a Photoshop image"),
    (rb"\0\0\x01\0", "an icon (ICO)"),
    (rb"DDS ", "a DDS image"),
    (rb"v/1\x01", "an OpenEXR image"),
    (rb"qoif", "a QOI image"),
    (rb"BPG\xfb", "a BPG image"),
    (rb"\x01\xda", "an SGI image"),
    (rb"#\?RADIANCE", "a Radiance image"),
    (rb"P7\s", "a PAM image"),
    (rb"P[Ff]\s", "a PFM image"),
    (rb"SIMPLE  =", "a FITS image"),
    (rb"\s*(<\?xml[^>]*>\s*)?(<!--[^>]*>\s*)?(<!DOCTYPE svg[^>]*>\s*)?<svg", "an SVG drawing"),
    (rb".{128}DICM", "a DICOM image"),
    (rb"\x0a[\x00-\x05]\x01[\x01\x02\x04\x08]", "a PCX image"),
    (rb"\x59\xa6\x6a\x95", "a Sun raster image"),
    (rb"\x8aMNG|\x8bJNG", "an MNG or JNG image"),
    (rb"SDPX|XPDS", "a DPX image"),
    (rb"/\* XPM", "an XPM image"),
    (rb"#define \w+_width ", "an XBM image"),
    (rb"id=ImageMagick", "a MIFF image"),
    (rb"farbfeld", "a farbfeld image"),
    (rb"gimp xcf", "an image of GIMP (XCF)"),
    (rb"(.{4}|.{344})n[i+]1\0", "a NIfTI image"),
    (rb"%!PS|\xc5\xd0\xd3\xc6", "a PostScript drawing"),
    (rb"\x01\0\0\0.{36} EMF|\xd7\xcd\xc6\x9a", "a Windows metafile"),
)
_FAILED = "instead of an image, such as the error of a failed download; download it again"
_OTHERS = (
    (rb"version https://git-lfs", "a pointer of Git LFS instead of an image; run git lfs pull"),
    (
        rb"\s*(<\?xml[^>]*>\s*)?(<!--[^>]*>\s*)?<(!doctype\s+html|html|head|body)",
        "an HTML page instead of an image, such as the error page of a failed download; download it again",
    ),
    (rb"\s*<\?xml", f"an XML document {_FAILED}"),
    (rb"\s*[{\[]\s*(\"|[{\[]\s*\")", f"a JSON document {_FAILED}"),
    (
        rb"\s*(HTTP/\d|[45]\d\d[ :]|(error|not found|forbidden|access denied|unauthorized|bad gateway)\b)",
        f"an error message {_FAILED}",
    ),
    (rb"\x93NUMPY", "a NumPy array; set DecodeNumpy instead of DecodeImage"),
    (rb"%PDF", "a PDF document instead of an image"),
    (rb"PK\x03\x04", "a ZIP archive instead of an image; extract it"),
    (rb"\x1f\x8b", "a gzip file instead of an image; extract it"),
    (rb"\x89HDF", "an HDF5 file instead of an image"),
    (
        rb"BZh\d1AY|\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|.{257}ustar",
        "an archive instead of an image; extract it",
    ),
    (rb"PAR1", "a Parquet file instead of an image"),
    (rb"\0\x05\x16\x07", "metadata of macOS (AppleDouble) instead of an image; delete the file"),
    (
        rb"....ftyp(iso|mp4|M4V|M4A|qt|3g|dash|avc1)|RIFF....AVI |\x1a\x45\xdf\xa3|FLV\x01|\0\0\x01\xba",
        "a video instead of an image",
    ),
    (rb"data:image/|/9j/4|iVBORw0KGgo", "an image as Base64 text; decode the text and write its bytes"),
)
_UNSUPPORTED = tuple((pattern, f"{name} is not supported; {_CONVERT}") for pattern, name in _IMAGES)
_PATTERNS = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), text) for pattern, text in (*_UNSUPPORTED, *_OTHERS)
)
_TGA_END = b"TRUEVISION-XFILE.\0"
_HEAD = 4096  # bytes that the patterns examine

# Bytes near the end of a complete file
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "JPEG2000": b"\xff\xd9"}
_TAIL = 1024


def describe_contents(data: bytes) -> str:
    """Returns what a file contains that has no header of a supported image format."""
    head = data[:_HEAD]
    text = next((text for pattern, text in _PATTERNS if pattern.match(head)), None)
    if text is None and data.endswith(_TGA_END):
        text = f"a TGA image is not supported; {_CONVERT}"
    if text is None and not any(head):
        text = "only zero bytes instead of an image; copy the file again"
    return NO_IMAGE if text is None else text


def describe_damage(name: str, data: bytes) -> str:
    """Returns why an image of a supported format can't be decoded: it is truncated or otherwise damaged.

    Args:
        name: Name of the format, see `Header.format`.
        data: Bytes of the file.
    """
    end = _ENDS.get(name)
    cut = end is not None and end not in data[-_TAIL:]
    if name == "WEBP":
        cut = len(data) < int.from_bytes(data[4:8], "little") + 8
    if name == "BMP":
        cut = len(data) < int.from_bytes(data[2:6], "little")
    if cut:
        return f"the {name} file is truncated: its end is missing; copy it again"
    return f"the {name} file is damaged; save or copy it again"
