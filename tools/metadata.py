"""hatchling's metadata hook: the URLs of the project, and the README as the wheel's description.

A package index shows the description without the files beside it, so relative links lead nowhere there. With
MQLAKE_URL in the environment of the build (the repository's address, as in https://host/owner/mqlake) they become
absolute, and the metadata names the project's pages; without it, the links become their text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

UPSTREAM = {"Apache RocketMQ": "https://rocketmq.apache.org/"}
BRANCH = "blob/main"
_LINK = re.compile(r"!?\[([^\]]+)\]\((?![a-z]+:)([^)\s]+)\)")


def description(readme: str, repository: str) -> str:
    """`readme` without relative links: absolute ones into `repository`, or nothing but their text without one. A
    picture is a link, too."""
    if repository:
        return _LINK.sub(rf"[\1]({repository}/{BRANCH}/\2)", readme)
    return _LINK.sub(r"\1", readme)


def urls(repository: str) -> dict[str, str]:
    """The pages that the metadata names."""
    if not repository:
        return UPSTREAM
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/{BRANCH}/docs/design.md",
        "Changelog": f"{repository}/{BRANCH}/CHANGELOG.md",
        "Security": f"{repository}/{BRANCH}/SECURITY.md",
        **UPSTREAM,
    }


class Metadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("MQLAKE_URL", "").rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text, repository)}
        metadata["urls"] = urls(repository)


def get_metadata_hook() -> type[MetadataHookInterface]:
    return Metadata
