"""The upload session against a service that takes parts, loses answers and forgets: no HTTP, no client."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from dstl_dagster.errors import (
    ConflictError,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from dstl_dagster.format.crc32c import crc32c, to_base64
from dstl_dagster.storage import ObjectStat
from dstl_dagster.storage.gcs.errors import refusal
from dstl_dagster.storage.gcs.upload import GCSWriter, Reply, ResumableUpload
from dstl_dagster.storage.policy.retry import Retries, RetryAttempt, RetryPolicy
from dstl_dagster.testing.virtual_clock import VirtualClock

UNIT = 256 * 1024


class Service:
    """One session. `mood(number)` decides about request `number`: "", "lost", "before", or "part"."""

    def __init__(self, keep: bool = True) -> None:
        self.received = bytearray()
        self.size = 0
        self.made: bytes | None = None
        self.moods: dict[int, str] = {}
        self.requests: list[str] = []
        self.keep = keep

    def start(self) -> str:
        return "session"

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, attempt: RetryAttempt
    ) -> Reply:
        number = len(self.requests)
        span = headers.get("Content-Range", "")
        self.requests.append(f"{method} {span}")
        mood = self.moods.get(number, "")
        if mood == "before":
            raise UnavailableError("before")
        reply = self.answer(span, headers, body, part=mood == "part")
        if mood == "lost":
            raise UnavailableError("lost")
        return reply

    def answer(self, span: str, headers: Mapping[str, str], body: bytes, part: bool) -> Reply:
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", span)
        assert match is not None, span
        if self.made is None:
            if match.group(1) is not None:
                assert int(match.group(1)) == self.size
                assert int(match.group(2)) - int(match.group(1)) + 1 == len(body)
                taken = body[: UNIT * max(0, (len(body) - 1) // UNIT)] if part else body
                self.size += len(taken)
                if self.keep:
                    self.received += taken
            if match.group(3) == "*" or int(match.group(3)) != self.size:
                held = {"Range": f"bytes=0-{self.size - 1}"} if self.size else {}
                return Reply(308, held, None, "")
            self.made = bytes(self.received)
            if self.keep:
                assert headers.get("X-Goog-Hash") in (None, f"crc32c={to_base64(crc32c(self.made))}")
        return Reply(200, {}, {"size": str(self.size)}, "")


def upload_to(service: Service, chunk_size: int = UNIT, max_attempts: int = 20) -> ResumableUpload:
    retries = Retries(RetryPolicy(max_attempts=max_attempts, total_seconds=None), clock=VirtualClock())
    return ResumableUpload("gs://b/o", service.start, service.send, retries, chunk_size)


def test_every_single_fault() -> None:
    """Whatever one request is lost, before or after its effect, or taken in part, the object is whole."""
    payload = random.Random(1).randbytes(5 * UNIT + 1234)
    clean = Service()
    upload = upload_to(clean, 2 * UNIT)
    upload.write(payload)
    upload.finish()
    assert clean.made == payload
    for number in range(len(clean.requests)):
        for mood in ("lost", "before", "part"):
            service = Service()
            service.moods[number] = mood
            upload = upload_to(service, 2 * UNIT)
            for start in range(0, len(payload), 100_001):
                upload.write(payload[start : start + 100_001])
            upload.finish()
            assert service.made == payload, (number, mood)


def test_many_faults() -> None:
    """The same with half of all requests failing, for many seeds."""
    for seed in range(60):
        chance = random.Random(seed)
        payload = chance.randbytes(chance.randrange(1, 6 * UNIT))
        service = Service()
        service.moods = {
            number: chance.choice(["lost", "before", "part", "", "", ""]) for number in range(400)
        }
        upload = upload_to(service, UNIT * chance.randint(1, 3), max_attempts=200)
        upload.write(payload)
        upload.finish()
        assert service.made == payload, seed


def test_a_finished_upload_is_asked_for() -> None:
    """An end whose answer was lost is found by asking the session, and sent once."""
    service = Service()
    service.moods[0] = "lost"
    upload = upload_to(service)
    upload.write(b"abc")
    assert upload.finish() == {"size": "3"}
    assert service.requests == ["PUT bytes 0-2/3", "PUT bytes */3"]


def test_ending_again_after_giving_up() -> None:
    """When the attempts are used up the end may be called again, and goes on."""
    service = Service()
    service.moods = dict.fromkeys(range(3), "before")
    upload = upload_to(service, max_attempts=3)
    upload.write(b"abc")
    with pytest.raises(UnavailableError):
        upload.finish()
    upload.finish()
    assert service.made == b"abc"


def test_an_object_of_other_bytes_is_refused_each_time() -> None:
    """A writer whose object has another checksum than what was written never says that it made it."""
    other = ObjectStat("o", 1, UNIT + 1, 0xBAD, datetime(2026, 1, 1, tzinfo=UTC))
    writer = GCSWriter("gs://b/o", upload_to(Service()), put=lambda _: other, stat_of=lambda _: other)
    writer.write(bytes(UNIT + 1))
    for _ in range(2):
        with pytest.raises(FormatError, match="0x00000bad"):
            writer.close()


def test_memory_is_bounded() -> None:
    """64 MB in pieces of 100 KB through chunks of 1 MiB never take two: the buffer is sent as it is."""
    service = Service(keep=False)
    chunk = 4 * UNIT
    upload = upload_to(service, chunk)
    piece = bytes(100_000)
    tracemalloc.start()
    for _ in range(640):
        upload.write(piece)
    upload.finish()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert service.size == 64_000_000
    assert peak_bytes < 2 * chunk


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (412, "", ConflictError),
        (404, "", NotFoundError),
        (410, "", NotFoundError),
        (400, "Provided CRC32C doesn't match", FormatError),
        (400, 'Provided CRC32C "AAAAAA==" doesn\'t match calculated CRC32C "AAAABA==".', FormatError),
        (400, "bad", InvalidInputError),
        (400, "Disallowed object name 'Provided CRC32C', 'checksum'", InvalidInputError),
        (403, "", InvalidInputError),
    ],
)
def test_refusals(status: int, text: str, expected: type[Exception]) -> None:
    """Each refusal of the end is the error that says what to do, and is not asked again."""

    class Refusing(Service):
        def answer(self, *args: object, **kwargs: object) -> Reply:
            return Reply(status, {}, None, text)

    service = Refusing()
    upload = upload_to(service)
    upload.write(b"abc")
    with pytest.raises(expected):
        upload.finish()
    assert len(service.requests) == 1


def test_a_service_that_forgets_is_found_out() -> None:
    """A session that holds fewer bytes than it said before cannot go on, and nothing is made up."""

    class Forgetful(Service):
        def answer(self, span: str, headers: Mapping[str, str], body: bytes, part: bool) -> Reply:
            if len(self.requests) == 2:
                return Reply(308, {}, None, "")
            return super().answer(span, headers, body, part)

    upload = upload_to(Forgetful())
    upload.write(b"x" * (2 * UNIT))
    with pytest.raises(InternalError):
        upload.write(b"x" * (2 * UNIT))


@pytest.mark.parametrize("status", [408, 429, 500, 503, 599])
def test_what_may_be_asked_again(status: int) -> None:
    """Time-outs, rates and the service's own faults are UnavailableError."""
    assert isinstance(refusal(status, "x" * 1000, "gs://b/o"), UnavailableError)
    assert len(str(refusal(status, "x" * 1000, "gs://b/o"))) < 500


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Bucket is requester pays bucket but no user project provided."),
        (412, "Request violates constraint 'constraints/gcp.restrictNonCmekServices'"),
    ],
)
def test_what_an_owner_forbids_blocks_no_file(status: int, message: str) -> None:
    """No fault of the object, so that step 6 waits; the service's words say what to change."""
    error = refusal(status, message, "gs://b/o")
    assert isinstance(error, InvalidInputError)
    assert error.kind == "no_permission"
    assert message in str(error)


def test_cancel_never_raises() -> None:
    """Giving up is quiet, also when the service is away."""
    service = Service()
    upload = upload_to(service)
    upload.cancel()
    upload.write(b"x" * (2 * UNIT))
    service.moods = dict.fromkeys(range(100), "before")
    upload.cancel()
