"""The constants of constants.pxd where kernels run uncompiled."""

from mqlake.formats.batch import ITEM_SIZE_MIN
from mqlake.formats.columns import layout
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE
from mqlake.formats.index import HASH_SLOT_SIZE, INDEX_HEADER_SIZE, INDEX_SIZE
from mqlake.formats.record import (
    BLANK_MAGIC_CODE,
    BODY_CRC_POSITION,
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    CRC32_TAIL_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    FLAG_POSITION,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    PHYSICAL_OFFSET_POSITION,
    PROPERTIES_LENGTH_MAX,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
    RECORD_SIZE_MIN,
    SYS_FLAG_POSITION,
)
from mqlake.message.flags import MessageSysFlag

BORNHOST_V6_FLAG = int(MessageSysFlag.BORNHOST_V6_FLAG)
STOREHOSTADDRESS_V6_FLAG = int(MessageSysFlag.STOREHOSTADDRESS_V6_FLAG)

# The names of properties that dispatch needs, as numbers: the first four or eight letters.
NAME_TAGS = int.from_bytes(b"TAGS", "big")
NAME_KEYS = int.from_bytes(b"KEYS", "big")
NAME_DELA = int.from_bytes(b"DELA", "big")
NAME_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
NAME_INNER_NU = int.from_bytes(b"INNER_NU", "big")
NAME_INNER_BA = int.from_bytes(b"INNER_BA", "big")
NAME_SE = int.from_bytes(b"SE", "big")

# The shapes of properties that are known: a row for each, by their length, and one for those without. In a row:
# where values begin and end, from the position of the properties on, and, of a shape, its model's length and
# position, the last length that there was, and a bit for each byte that is no value
AT_TAGS, AT_KEYS, AT_UNIQ_KEY, AT_DELAY, AT_INNER_NUM, AT_INNER_BASE = range(0, 12, 2)
PLACES = 12
SHAPE_LENGTH, SHAPE_MODEL, SHAPE_SEEN, SHAPE_FIXED = range(PLACES, PLACES + 4)
SHAPE_MAX = (layout.SHAPE_SIZE - SHAPE_FIXED) * 64
UNKNOWN_SHAPE = layout.SHAPES * layout.SHAPE_SIZE
SHAPE_HITS, SHAPES_LEARNED = PLACES, PLACES + 1
"""In the row UNKNOWN_SHAPE."""
HITS_A_SHAPE = 8
"""So many records that have a shape save more than it costs to learn one."""
