"""HPACK (RFC 7541): the compressed headers of HTTP/2.

    1iiiiiii                         an entry of the tables
    01iiiiii [name] value            a literal that becomes the newest entry of the dynamic table
    0000iiii, 0001iiii [name] value  a literal that does not
    001sssss                         a new size of the dynamic table

i is an index (61 static entries, then the dynamic ones, the newest first), 0 for a name in full. Strings
are a length and bytes, Huffman coded if the first bit of the length is set.

Only the decoder has a dynamic table. What a server sends is encoded without one, so that the headers of
most answers are constants.
"""

from __future__ import annotations

TABLE_SIZE = 4096
"""Of the dynamic table, at most; a server that wants another has to say so in its settings."""
HEADERS_MAX = 64 * 1024
"""Of one list of headers, in the size that HPACK counts: 32 more than name and value."""
_ENTRY = 32
_CACHED_MAX = 64

Header = tuple[str, str]

_STATIC_TEXT = """
:authority| :method|GET :method|POST :path|/ :path|/index.html :scheme|http :scheme|https :status|200 :status|204
:status|206 :status|304 :status|400 :status|404 :status|500 accept-charset| accept-encoding|gzip,deflate
accept-language| accept-ranges| accept| access-control-allow-origin| age| allow| authorization| cache-control|
content-disposition| content-encoding| content-language| content-length| content-location| content-range|
content-type| cookie| date| etag| expect| expires| from| host| if-match| if-modified-since| if-none-match|
if-range| if-unmodified-since| last-modified| link| location| max-forwards| proxy-authenticate|
proxy-authorization| range| referer| refresh| retry-after| server| set-cookie| strict-transport-security|
transfer-encoding| user-agent| vary| via| www-authenticate|
"""
_STATIC: tuple[Header, ...] = tuple(
    (name, value.replace(",", ", "))
    for name, _, value in (entry.partition("|") for entry in _STATIC_TEXT.split())
)
_CODE_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b0806"
    "06060505050606060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d"
    "130d0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414161616171617"
    "17171717181718181617181717171715161716171718161514161617171517161618151617171515161517161717"
    "14161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b141814151615"
    "15171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
"""Of the 256 bytes and the end of a string, in bits. The codes follow: those of one length ascend
with the byte."""


class HpackError(Exception):
    """A block of headers that breaks the rules; the connection cannot continue."""


# --- Huffman codes


def _tree() -> list[list[int]]:
    """Nodes of two branches each: another node, or -1 - symbol. Node 0 is the root."""
    nodes: list[list[int]] = [[0, 0]]
    code, length = 0, 0
    for size, symbol in sorted((size, symbol) for symbol, size in enumerate(_CODE_LENGTHS)):
        code, length = code << (size - length), size
        node = 0
        for bit in range(size - 1, 0, -1):
            branch = code >> bit & 1
            if not nodes[node][branch]:
                nodes.append([0, 0])
                nodes[node][branch] = len(nodes) - 1
            node = nodes[node][branch]
        nodes[node][code & 1] = -1 - symbol
        code += 1
    return nodes


_NODES = _tree()
_END = 256
_PADDINGS = {0}
"""Where a string may end: after up to seven ones, the beginning of the code of its end."""
_node = 0
for _ in range(7):
    _node = _NODES[_node][1]
    _PADDINGS.add(_node)
_steps: dict[int, tuple[int, bytes]] = {}
"""(node << 8 | byte) -> the node after the byte, and what it completes. Filled as it is needed."""


def _step(key: int) -> tuple[int, bytes]:
    node, found = key >> 8, bytearray()
    for bit in range(7, -1, -1):
        node = _NODES[node][key >> bit & 1]
        if node < 0:
            if node == -1 - _END:
                raise HpackError("a string has a code for its end")
            found.append(-1 - node)
            node = 0
    step = _steps[key] = node, bytes(found)
    return step


def huffman_decode(data: bytes) -> bytes:
    """Raises HpackError."""
    node, found = 0, []
    for byte in data:
        key = node << 8 | byte
        node, some = _steps.get(key) or _step(key)
        found.append(some)
    if node not in _PADDINGS:
        raise HpackError("a string ends within a code")
    return b"".join(found)


# --- blocks


class Decoder:
    """The headers of one connection, in the order of their arrival."""

    def __init__(self) -> None:
        self._entries: list[Header] = []
        """The dynamic table, the newest first."""
        self._size = 0
        self._size_max = TABLE_SIZE
        self._cached: dict[bytes, list[Header]] = {}
        """Blocks that did not change the table, as it is now. A client that repeats its requests repeats them."""

    def decode(self, block: bytes) -> list[Header]:
        """Raises HpackError."""
        known = self._cached.get(block)
        if known is not None:
            return known
        try:
            headers, changed = self._decode(block)
        except IndexError:
            raise HpackError("a block of headers ends within a header") from None
        if changed:
            self._cached.clear()
        elif len(self._cached) < _CACHED_MAX:
            self._cached[block] = headers
        return headers

    def _decode(self, block: bytes) -> tuple[list[Header], bool]:
        found: list[Header] = []
        position, size, changed = 0, 0, False
        while position < len(block):
            first = block[position]
            if first & 0x80:
                index, position = _integer(block, position, 0x7F)
                header = self._entry(index)
            elif first & 0xE0 == 0x20:
                if found:
                    raise HpackError("a size of the table after headers")
                wanted, position = _integer(block, position, 0x1F)
                if wanted > TABLE_SIZE:
                    raise HpackError(f"a table of {wanted} bytes; {TABLE_SIZE} are allowed")
                self._size_max = wanted
                self._evict(0)
                changed = True
                continue
            else:
                indexed = first & 0x40
                index, position = _integer(block, position, 0x3F if indexed else 0x0F)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, position = _string(block, position)
                value, position = _string(block, position)
                header = name, value
                if indexed:
                    self._add(header)
                    changed = True
            size += len(header[0]) + len(header[1]) + _ENTRY
            if size > HEADERS_MAX:
                raise HpackError(f"headers of more than {HEADERS_MAX} bytes")
            found.append(header)
        return found, changed

    def _entry(self, index: int) -> Header:
        if index <= len(_STATIC):
            if not index:
                raise HpackError("an entry with index 0")
            return _STATIC[index - 1]
        place = index - len(_STATIC) - 1
        if place >= len(self._entries):
            raise HpackError(f"entry {index} of a table of {len(_STATIC) + len(self._entries)}")
        return self._entries[place]

    def _add(self, header: Header) -> None:
        size = len(header[0]) + len(header[1]) + _ENTRY
        self._evict(size)
        if size <= self._size_max:
            self._entries.insert(0, header)
            self._size += size

    def _evict(self, needed: int) -> None:
        while self._entries and self._size + needed > self._size_max:
            name, value = self._entries.pop()
            self._size -= len(name) + len(value) + _ENTRY


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    for shift in range(0, 28, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise HpackError("a number of more than 32 bits")


def _string(block: bytes, position: int) -> tuple[str, int]:
    coded = block[position] & 0x80
    length, position = _integer(block, position, 0x7F)
    data = block[position : position + length]
    if len(data) < length:
        raise HpackError("a string ends after its block")
    return (huffman_decode(data) if coded else data).decode("latin-1"), position + length


def encode(headers: list[Header]) -> bytes:
    """Literals in full, which do not enter the table."""
    return b"".join(
        b"\0" + _length(len(name)) + name.encode("latin-1") + _length(len(value)) + value.encode("latin-1")
        for name, value in headers
    )


def _length(value: int) -> bytes:
    if value < 0x7F:
        return bytes((value,))
    found, value = bytearray((0x7F,)), value - 0x7F
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
