"""The base of the generated models."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    # Fields that a newer server adds are kept. Schemas are built when they are first used, so that the import is quick.
    model_config = ConfigDict(extra="allow", defer_build=True, populate_by_name=True, protected_namespaces=())

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if value is not None:
                yield name, value
