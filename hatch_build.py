"""What a release says of where the project lives: links in README.md that an index can follow, and URLs.

Owns the metadata that follows from `home` in pyproject.toml, the address of the repository, and from nothing
else. Without one README.md stays as it is, with links that a checkout follows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReleaseMetadata(MetadataHookInterface):
    """Hatchling finds it by its base class."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        home = self.config["home"].rstrip("/")
        if home:
            pages = f"{home}/blob/v{metadata['version']}"
            text = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\1{pages.replace('/blob/', '/raw/')}/", text)
            text = re.sub(r"((?<!!)\[[^]]*\]\()(?!\w+:)", rf"\1{pages}/", text)
            metadata["urls"] = {
                "Homepage": home,
                "Documentation": f"{pages}/docs/index.md",
                "Changelog": f"{pages}/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
