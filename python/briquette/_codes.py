"""Decodes integer codes: packed codes and entropy-coded blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from briquette._error import FormatError

#: Codes that are decoded side by side in one block.
_LANES = 32
#: Slots that the frequencies of a block share.
_SLOTS = 4096
#: A state below this takes the next word; every state is this at the end.
_LOWEST = 1 << 15
#: Blocks that are decoded at a time: enough to make numpy fast, few enough for their tables to stay in the cache.
_BATCH = 128

#: The float32 values nearest to `2^(j/8)`, by their bits.
_ROOTS = np.array([0x3F800000, 0x3F8B95C2, 0x3F9837F0, 0x3FA5FED7, 0x3FB504F3, 0x3FC5672A, 0x3FD744FD, 0x3FEAC0C7], "<u4").view("<f4")


def log_scale(stored: np.ndarray) -> np.ndarray:
    """Returns the scales of bytes `u`: `2^((u - 192) / 8)` in float32."""
    exponents = (stored >> 3).astype("<i4") - 24
    return np.ldexp(_ROOTS[stored & 7], exponents)


def unpack(packed: np.ndarray, bits: int, n: int) -> np.ndarray:
    """Returns the first `n` codes of each row of packed bytes.

    Code `i` is at bit `i * bits` of its row, low bit first, as `code + 2^(bits - 1)`.
    """
    n_rows, n_groups = len(packed), -(-n // 8)
    padded = np.zeros((n_rows, n_groups * bits), np.uint8)
    width = min(padded.shape[1], packed.shape[1])
    padded[:, :width] = packed[:, :width]
    # Eight codes fill whole bytes at any width: one word for each eight.
    words = np.zeros((n_rows, n_groups, 8), np.uint8)
    words[:, :, :bits] = padded.reshape(n_rows, n_groups, bits)
    words = words.view("<u8")[:, :, 0]
    codes = np.empty((n_rows, n_groups, 8), np.uint8)
    for place in range(8):
        codes[:, :, place] = words >> np.uint64(place * bits) & np.uint64((1 << bits) - 1)
    codes -= np.uint8(1 << (bits - 1))
    return codes.reshape(n_rows, n_groups * 8)[:, :n].view(np.int8)


@dataclass(frozen=True)
class Block:
    """An entropy-coded block of codes, and where its codes go."""

    #: The tensor and the number of the block, for errors.
    label: str
    data: np.ndarray
    bits: int
    #: The codes, int8.
    out: np.ndarray
    #: The length of rows, if the tensor's codes may be on a trellis.
    trellis_cols: int | None = None


def decode_blocks(blocks: list[Block]) -> None:
    """Fills the codes of each block.

    A block with the size of its packed codes contains the packed codes. Any other block is coded by rANS with 32 interleaved states.
    If codes may be on a trellis, it begins with the number of its tables.

    Raises:
        FormatError: if a block is damaged.
    """
    coded: dict[int | None, list[Block]] = {}
    for block in blocks:
        n_packed = (len(block.out) * block.bits + 7) // 8
        if len(block.data) == n_packed:
            block.out[:] = unpack(block.data[None], block.bits, len(block.out))[0]
        elif len(block.data) > n_packed:
            raise FormatError(f"{block.label}: found {len(block.data)} bytes, expected at most {n_packed}; the file is damaged")
        elif block.trellis_cols is None:
            coded.setdefault(None, []).append(block)
        else:
            kind = int(block.data[0]) if len(block.data) else 0
            if kind not in (1, 2) or (kind == 2 and block.trellis_cols % _LANES):
                raise FormatError(f"{block.label}: found {kind} tables, expected 1 or 2; the file is damaged")
            # A table of a trellis has pairs of codes, with one bit less.
            rest = replace(block, data=block.data[1:], bits=block.bits + 1 - kind)
            coded.setdefault(block.trellis_cols if kind == 2 else None, []).append(rest)
    for n_cols, alike in coded.items():
        # The longest blocks first, so that the unfinished blocks are always the first of a batch.
        alike.sort(key=lambda block: -len(block.out))
        for start in range(0, len(alike), _BATCH):
            _decode_batch(alike[start : start + _BATCH], n_cols)


def _decode_batch(blocks: list[Block], n_cols: int | None) -> None:
    """Decodes blocks with one table, or with rows of `n_cols` codes on a trellis."""
    n = len(blocks)
    # An entry has the symbol of a slot (8 bits), its frequency (12) and the distance of the slot from the symbol's first one (12).
    n_tables = 1 if n_cols is None else 2
    table = np.empty((n, n_tables, _SLOTS), np.uint32)
    #: The state of each column of a trellis.
    columns = np.zeros((n, n_cols or 0), np.uint8)
    states = np.empty((n, _LANES), np.uint32)
    word_arrays, lengths = [], []
    for number, block in enumerate(blocks):
        at = 0
        for parity in range(n_tables):
            table[number, parity], n_read = _read_table(block, at)
            at += n_read
        if len(block.data) < at + 4 * _LANES or (len(block.data) - at) % 2:
            raise FormatError(f"{block.label}: found {len(block.data)} bytes, which end within a state or word; the file is damaged")
        states[number] = block.data[at : at + 4 * _LANES].view("<u4")
        word_arrays.append(block.data[at + 4 * _LANES :].view("<u2"))
        lengths.append(len(word_arrays[-1]))
    ends = np.cumsum(lengths, dtype=np.int64)
    # The place of the next word of each block; one word more, so that there is always one to take.
    cursors = ends - np.array(lengths)
    words = np.concatenate([*word_arrays, np.zeros(1, np.uint16)]).astype(np.uint32)
    entries, first_entry = table.reshape(-1), np.arange(n, dtype=np.uint32)[:, None] * np.uint32(n_tables * _SLOTS)
    if n_cols is not None:
        # The symbol of a slot is a code without its lowest bit, which is its parity.
        symbols = table & np.uint32(0xFF)
        table[:] = table - symbols + (symbols << np.uint32(1) & np.uint32(0xFF)) + np.arange(2, dtype=np.uint32)[None, :, None]

    def turn(active: slice, number: int, lanes: int) -> np.ndarray:
        """Decodes one code in each of the first lanes of some blocks."""
        state = states[active, :lanes]
        slot = (state & np.uint32(_SLOTS - 1)) + first_entry[active]
        if n_cols is not None:
            start = number * _LANES % n_cols
            column = columns[active, start : start + _LANES]
            slot += (column & 1).astype(np.uint32) * np.uint32(_SLOTS)
        entry = entries[slot]
        state = (entry >> np.uint32(8) & np.uint32(_SLOTS - 1)) * (state >> np.uint32(12)) + (entry >> np.uint32(20))
        is_low = state < _LOWEST
        taken = np.cumsum(is_low, axis=1)
        # Damaged states may ask for more words than there are: the end then differs, which is checked below.
        refilled = state << np.uint32(16) | words.take(taken + (cursors[active, None] - 1), mode="clip")
        states[active, :lanes] = np.where(is_low, refilled, state)
        cursors[active] += taken[:, -1]
        codes = entry.astype(np.uint8)
        if n_cols is not None:
            columns[active, start : start + _LANES] = (column << 1 & 7) | ((codes >> 1) ^ (column >> 1) ^ (column >> 2)) & 1
        return codes

    n_turns = [len(block.out) // _LANES for block in blocks]
    symbols = np.empty((n, n_turns[0], _LANES), np.uint8)
    active = n
    for number in range(n_turns[0]):
        while n_turns[active - 1] <= number:
            active -= 1
        symbols[:active, number] = turn(slice(0, active), number, _LANES)
    for number, block in enumerate(blocks):
        whole, rest = n_turns[number] * _LANES, len(block.out) % _LANES
        block.out[:whole] = symbols[number, : n_turns[number]].reshape(-1).view(np.int8)
        if rest:
            block.out[whole:] = turn(slice(number, number + 1), n_turns[number], rest)[0].view(np.int8)
        if cursors[number] != ends[number] or (states[number] != _LOWEST).any():
            raise FormatError(f"{block.label}: the codes do not end where the block does; the file is damaged")


def _read_table(block: Block, start: int) -> tuple[np.ndarray, int]:
    """Reads the frequencies at an offset of a block. Returns the entry of each slot, and the number of bytes."""
    data = block.data[start : start + 520].tobytes()
    frequencies = np.zeros(256, np.int64)
    at = 2
    try:
        first, last = (byte - 256 if byte > 127 else byte for byte in data[:2])
        for code in range(first, last + 1):
            low = data[at]
            frequencies[code & 0xFF] = low if low < 0x80 else low & 0x7F | data[at + 1] << 7
            at += 1 if low < 0x80 else 2
    except (IndexError, ValueError):
        raise FormatError(f"{block.label}: the frequencies are cut short; the file is damaged") from None
    half = 1 << (block.bits - 1)
    if first >= last or frequencies.sum() != _SLOTS or frequencies.max() == _SLOTS or frequencies[half : 256 - half].any():
        raise FormatError(f"{block.label}: the frequencies of codes sum to {frequencies.sum()}, expected {_SLOTS}; the file is damaged")
    symbols = np.repeat(np.arange(256), frequencies)
    starts = np.cumsum(frequencies) - frequencies
    return symbols | frequencies[symbols] << 8 | (np.arange(_SLOTS) - starts[symbols]) << 20, at
