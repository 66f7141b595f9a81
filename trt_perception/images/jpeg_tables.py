"""Read the Huffman tables of a JPEG, and provide the standard tables that Motion JPEG omits.

A table consists of 16 counts, the number of codes with 1 to 16 bits, and the symbols.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# ITU-T T.81, tables F.1 and F.2. For 8-bit pixels a DC difference has at most 11 bits, and an AC
# coefficient 10. AC symbols without bits are the end of a block, and a run of 16 zeros.
_DC_SYMBOLS: Final = frozenset(range(12))
_AC_SYMBOLS: Final = frozenset((0x00, 0xF0)) | {
    16 * run + bits for run in range(16) for bits in range(1, 11)
}

#: Tables of ITU-T T.81, K.3.3. Keys: class (0 for DC, 0x10 for AC) plus 0 for luma, 1 for chroma.
STANDARD_HUFFMAN_TABLES: Final[Mapping[int, bytes]] = MappingProxyType(
    {
        key: bytes.fromhex(text)
        for key, text in {
            0x00: '00010501010101010100000000000000000102030405060708090a0b',
            0x01: '00030101010101010101010000000000000102030405060708090a0b',
            0x10: (
                '0002010303020403050504040000017d01020300041105122131410613516107227114328191a108'
                '2342b1c11552d1f02433627282090a161718191a25262728292a3435363738393a43444546474849'
                '4a535455565758595a636465666768696a737475767778797a838485868788898a92939495969798'
                '999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2'
                'e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9fa'
            ),
            0x11: (
                '00020102040403040705040400010277000102031104052131061241510761711322328108144291'
                'a1b1c109233352f0156272d10a162434e125f11718191a262728292a35363738393a434445464748'
                '494a535455565758595a636465666768696a737475767778797a82838485868788898a9293949596'
                '9798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9da'
                'e2e3e4e5e6e7e8e9eaf2f3f4f5f6f7f8f9fa'
            ),
        }.items()
    }
)


def read_huffman_tables(body: bytes) -> dict[int, bytes] | None:
    """Return a segment's tables as in ``STANDARD_HUFFMAN_TABLES``; None if one is invalid."""
    tables, offset = {}, 0
    while offset < len(body):
        counts = body[offset + 1 : offset + 17]
        end = offset + 17 + sum(counts)
        symbols = body[offset + 17 : end]
        allowed = _AC_SYMBOLS if body[offset] & 0x10 else _DC_SYMBOLS
        if (
            body[offset] & ~0x11
            or end > len(body)
            or not symbols
            or not allowed.issuperset(symbols)
            or not _is_prefix_code(counts)
        ):
            return None
        tables[body[offset]] = counts + symbols
        offset = end
    return tables


def _is_prefix_code(counts: bytes) -> bool:
    """Return whether a prefix code with these lengths exists. The all-ones code is reserved."""
    used = 0
    for bits, count in enumerate(counts, start=1):
        used = 2 * used + count
        if used >= 2**bits:
            return False
    return True
