"""Clears the kernels of shared libraries that a GPU of compute capability 9.0 does not run:
`hopper_only.py LIBRARY ...`.

Device code lies in containers (magic number, version, length of the header, size), one for each
compiled file, whose entries
say kind (1: PTX, 2: machine code) and capability. Where a container has machine code for 9.0, the
rest of it is filled with zeros, else all but the newest PTX that 9.0 can compile. Lengths and
headers stay, so that the library loads as before and compresses well.
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

MAGIC, CAPABILITY = 0xBA55ED50, 90
PTX, MACHINE = 1, 2
Entry = tuple[int, int, int, int]


def sections(library: bytearray) -> Iterator[tuple[int, int]]:
    """First byte and end of every section with device code, of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, names = struct.unpack_from("<HHH", library, 58)
    headers = [
        struct.unpack_from("<IIQQQQ", library, table + size * number) for number in range(count)
    ]
    text = headers[names][4]
    for header in headers:
        start = text + header[0]
        if library[start : library.index(0, start)] in (b".nv_fatbin", b"__nv_relfatbin"):
            yield header[4], header[4] + header[5]


def entries(library: bytearray, place: int, end: int) -> Iterator[Entry]:
    """Kind, capability, first byte and size of the code of every entry of a container."""
    while place < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", library, place)
        (capability,) = struct.unpack_from("<I", library, place + 28)
        yield kind, capability, place + header, size
        place += header + size


def unused(found: list[Entry]) -> list[Entry]:
    """The entries that a GPU of this capability does not need."""
    if any((kind, capability) == (MACHINE, CAPABILITY) for kind, capability, *_ in found):
        needed = (MACHINE, CAPABILITY)
    else:
        needed = (
            PTX,
            max((c for kind, c, *_ in found if kind == PTX and c <= CAPABILITY), default=0),
        )
    return [entry for entry in found if entry[:2] != needed]


def clear(library: bytearray) -> int:
    """Fills what is not needed with zeros, and returns how many bytes that were."""
    cleared = 0
    for place, end in sections(library):
        while place + 16 <= end:
            magic, _, header, size = struct.unpack_from("<IHHQ", library, place)
            if magic != MAGIC:  # containers are aligned
                place += 8
                continue
            for _, _, start, length in unused(
                list(entries(library, place + header, place + header + size))
            ):
                library[start : start + length] = bytes(length)
                cleared += length
            place += header + size
    return cleared


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        content = bytearray(path.read_bytes())
        cleared = clear(content)
        path.write_bytes(content)
        print(f"{path.name}: {cleared / 1e6:.0f} of {len(content) / 1e6:.0f} MB cleared")
