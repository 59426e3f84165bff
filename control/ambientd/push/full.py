"""Full states: the first answer of a wildcard stream that tells nothing of what it holds. Frames are joined per bucket
of names, so that one change rebuilds one bucket (design, Frames and versions). Must not know streams."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Sequence

from ambientd.index.rendered import RenderedAddress, RenderedPolicy
from ambientd.push.frames import encode_frame
from ambientd.push.rounds import Maker, Part
from ambientd.push.views import Entry, Seq

_BUCKETS = 256
_YIELD_EVERY = 256


class Buckets:
    """The frames of one view, joined by bucket. The same process only: the buckets follow Python's hash of names."""

    def __init__(self) -> None:
        self._joined: list[bytes | None] = [None] * _BUCKETS
        self._counts = [0] * _BUCKETS
        self._changed: list[Seq] = [0] * _BUCKETS
        self._whole: weakref.ref[Part] | None = None
        self._whole_to: Seq = 0

    @staticmethod
    def of(name: str) -> int:
        return hash(name) % _BUCKETS

    def touch(self, buckets: Iterable[int], seq: Seq) -> None:
        """These buckets hold names that the commit `seq` changed."""
        for bucket in buckets:
            self._joined[bucket] = None
            self._changed[bucket] = seq

    def part(
        self,
        type_url: str,
        entries: Sequence[Entry[RenderedAddress] | Entry[RenderedPolicy]],
        maker: Maker,
        to: Seq,
    ) -> Generator[None, None, Part]:
        """The whole state as one message; shared while somebody still holds the last one and nothing changed."""
        whole = self._whole() if self._whole is not None and self._whole_to == to else None
        if whole is not None:
            return whole
        joined = list(self._joined)
        counts = list(self._counts)
        members: dict[int, list[bytes]] = {bucket: [] for bucket in range(_BUCKETS) if joined[bucket] is None}
        if members:
            for at, entry in enumerate(entries):
                if at % _YIELD_EVERY == 0:
                    yield
                frames = members.get(self.of(entry.name))
                if frames is not None and entry.rendered is not None:
                    rendered = entry.rendered
                    frames.append(encode_frame(type_url, rendered.name, rendered.version, rendered.body))
        for bucket, frames in members.items():
            joined[bucket] = b"".join(frames)
            counts[bucket] = len(frames)
            if self._changed[bucket] <= to:
                self._joined[bucket] = joined[bucket]
                self._counts[bucket] = counts[bucket]
        yield
        part = maker.part(type_url, [piece for piece in joined if piece], (), to, count=sum(counts))
        self._whole, self._whole_to = weakref.ref(part), to
        return part
