"""A message and its parts, apart from any bytes or files.

Tags, keys, the delay level and everything else that is optional are properties, a str to str mapping.
Names and numbers are RocketMQ's. Timestamps are ms since 1970, offsets are bytes (physical) or messages (queue).
"""

# ruff: noqa: F403 - the modules divide the code; users import every name from here

from mqlake.message.delay import *
from mqlake.message.flags import *
from mqlake.message.hashes import *
from mqlake.message.ids import *
from mqlake.message.message import *
from mqlake.message.pop import *
from mqlake.message.properties import *
from mqlake.message.topics import *
from mqlake.message.unread import *
