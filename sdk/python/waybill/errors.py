"""Errors: one class for each `code` of the API. Each message says what happened, and what to do.

ApiError                the server refused the request; `code`, `status`, `detail`, `retry_after`
├── Stale, NotFound, …  one class for each code
└── OlderServer         the server does not know an operation or a field of this package
Unanswered              no answer arrived; whether the request was carried out is not known
TurnFailed              a turn ended without the result that was asked for
ToolError               raise it in a tool: the model reads the text, and may call again
"""

from __future__ import annotations

from typing import Any, ClassVar, cast


class WaybillError(Exception):
    """The base of all errors of this package."""


class ConfigError(WaybillError):
    """A setting or a declaration of your program is wrong."""


class Unanswered(WaybillError):
    """No answer arrived, as long as the client tried. Check the address, the network and the proxy.

    Whether the request was carried out is not known; with the same `key=` you can send a start again.
    """


class ToolError(WaybillError):
    """Raise it in a tool, to tell the model what was wrong."""


class TurnFailed(WaybillError):
    """A turn has ended, and not with `success`. `deliverable` says why."""

    def __init__(self, turn_id: str, status: str, deliverable: Any) -> None:
        super().__init__(f"turn {turn_id} ended as {status}: {deliverable!r}. See what its model saw: `waybill context show {turn_id}`")
        self.turn_id = turn_id
        self.status = status
        self.deliverable = deliverable


class NotYet(WaybillError):
    """The turn has not ended within the time that you gave. It goes on: wait again."""


class ApiError(WaybillError):
    """The server refused a request."""

    #: The `code` that the API gives this error. It does not change.
    expected_code: ClassVar[str] = ""
    #: What to do.
    advice: ClassVar[str] = ""

    def __init__(self, status: int, code: str, detail: str, *, operation: str = "", retry_after: float | None = None) -> None:
        parts = [f"{operation}: " if operation else "", f"{status} {code}: {detail}"]
        if self.advice:
            parts.append(f". {self.advice}" if not detail.endswith(".") else f" {self.advice}")
        super().__init__("".join(parts))
        self.status = status
        self.code = code
        self.detail = detail
        self.operation = operation
        self.retry_after = retry_after


class OlderServer(ApiError):
    advice = "Upgrade the server, or install the version of this package that belongs to it"


class Invalid(ApiError):
    expected_code = "invalid"
    advice = "Correct the request; sending it again as it is does not help"


class Unauthorized(ApiError):
    expected_code = "unauthorized"
    advice = "Set WAYBILL_API_KEY to a key that is valid; `waybill keys create NAME --scope operator` makes one"


class Forbidden(ApiError):
    expected_code = "forbidden"
    advice = "Use a key with a scope and bounds that allow it; `wb.me()` shows what your key may do"


class NotFound(ApiError):
    expected_code = "not_found"
    advice = "Check the id or name, and the project: what belongs to another project does not exist for your key"


class MethodNotAllowed(ApiError):
    expected_code = "method_not_allowed"
    advice = "Check the address of the API"


class UnsupportedMediaType(ApiError):
    expected_code = "unsupported_media_type"
    advice = "Send JSON, or the media type that the operation names"


class Conflict(ApiError):
    expected_code = "conflict"
    advice = "Read what is there now, and decide again"


class Taken(ApiError):
    expected_code = "taken"
    advice = "Choose another name"


class Stale(ApiError):
    expected_code = "stale"
    advice = "Another worker has the turn or the call, or it is over: drop it"


class Delivered(ApiError):
    expected_code = "delivered"
    advice = "The turn has ended already: drop it"


class HeadLost(ApiError):
    expected_code = "head_lost"
    advice = "Drop the turn; the server repairs it and hands it out again"


class Unseen(ApiError):
    expected_code = "unseen"
    advice = "The turn got a message: read its output box, and go on"


class LeaseLost(ApiError):
    expected_code = "lease_lost"
    advice = "Drop everything that this worker holds, and take another name"


class IdempotencyMismatch(ApiError):
    expected_code = "idempotency_mismatch"
    advice = "The key was used for another request: use a new key"


class BudgetExhausted(ApiError):
    expected_code = "budget_exhausted"
    advice = "Raise the limits of the turn above, or hand out less"


class RecursionDepthExceeded(ApiError):
    expected_code = "recursion_depth_exceeded"
    advice = "Agents delegate too deeply: raise `max_recursion_depth` in the settings, or delegate less"


class NotRenderable(ApiError):
    expected_code = "not_renderable"
    advice = "The content of the call was erased or has expired; nothing brings it back"


class CardChanged(ApiError):
    expected_code = "card_changed"
    advice = "Someone changed these cards in the database: restore them from a backup"


class Unreadable(ApiError):
    expected_code = "unreadable"
    advice = "The instruction of the turn has expired or was deleted: start another turn"


class CannotFork(ApiError):
    expected_code = "cannot_fork"
    advice = "Fork at another model call, or change less"


class CannotCompose(ApiError):
    expected_code = "cannot_compose"
    advice = "Check the profile's `llm_config`"


class InvalidPackage(ApiError):
    expected_code = "invalid_package"
    advice = "Check the package with `wb.api.check_handoff` and correct what it names"


class NoArtifact(ApiError):
    expected_code = "no_artifact"
    advice = "Store the artifact before a card names it"


class QuotaExceeded(ApiError):
    expected_code = "quota_exceeded"
    advice = "Remove artifacts, or raise `artifact_quota_bytes` in the settings"


class Quota(ApiError):
    expected_code = "quota"
    advice = "Wait until the quota has room, or have it raised"


class GivenUp(ApiError):
    expected_code = "given_up"
    advice = "Upload again"


class RangeNotSatisfiable(ApiError):
    expected_code = "range"
    advice = "Ask for bytes that the content has"


class EnoughKeys(ApiError):
    expected_code = "enough_keys"
    advice = "Revoke a key of this name first"


class CrossSite(ApiError):
    expected_code = "cross_site"
    advice = "Send the request from the site of the console"


class TooLarge(ApiError):
    expected_code = "too_large"
    advice = "Send less at a time; store bulk content as an artifact"


class TooSlow(ApiError):
    expected_code = "too_slow"
    advice = "Send the body faster, or less of it"


class RateLimited(ApiError):
    expected_code = "rate_limited"
    advice = "Send fewer requests at a time; `retry_after` says when there is room"


class Backlog(ApiError):
    expected_code = "backlog"
    advice = "Turns wait too long already: add workers, or start fewer"


class Overloaded(ApiError):
    expected_code = "overloaded"
    advice = "Try again later, or add servers"


class Busy(ApiError):
    expected_code = "busy"
    advice = "Try again in a moment"


class TryAgain(ApiError):
    expected_code = "try_again"
    advice = "Try again: nothing was written"


class Unavailable(ApiError):
    expected_code = "unavailable"
    advice = "The server cannot reach its database or store: try again later"


class Internal(ApiError):
    expected_code = "internal"
    advice = "The server failed, and its log says why. Send the same request again with the same key"


class ReceiptMismatch(ApiError):
    expected_code = "receipt_mismatch"
    advice = "Nothing was written: compose again"


class UnreadableResponse(ApiError):
    expected_code = "unreadable_response"
    advice = "Nothing was written: ask the model again, compose with a fallback, or give the turn back"


class NoProvider(ApiError):
    expected_code = "no_provider"
    advice = "Add the provider to the file of `waybill serve --providers`"


class NotRecorded(ApiError):
    expected_code = "not_recorded"
    advice = "Record the call first, or replay without `strict`"


class NoProviderAnswer(ApiError):
    expected_code = "no_provider_answer"
    advice = "Check the provider's address and status"


class ReplaysFull(ApiError):
    expected_code = "replays_full"
    advice = "End other replays first"


class SessionEnded(ApiError):
    expected_code = "session_ended"
    advice = "Open a new session"


class Refused(ApiError):
    expected_code = "refused"
    advice = "The detail says why"


class BadRequest(ApiError):
    expected_code = "bad_request"
    advice = "Correct the arguments or the `handover` rules"


#: The class of each code.
CLASSES: dict[str, type[ApiError]] = {kind.expected_code: kind for kind in ApiError.__subclasses__() if kind.expected_code}

#: The server has done nothing yet when it answers with one of these: any request may be sent again.
NOT_DONE = {"rate_limited", "backlog", "overloaded", "busy", "try_again"}


def from_problem(status: int, problem: Any, operation: str) -> ApiError:
    """Returns the error of a problem document (RFC 9457). A body that is none came from something in between."""
    if not isinstance(problem, dict) or "code" not in problem:
        return ApiError(status, "no_problem", f"the answer is not from Waybill: {str(cast(Any, problem))[:300]!r}", operation=operation)
    said = cast("dict[str, Any]", problem)
    code = str(said["code"])
    kind = CLASSES.get(code, ApiError)
    wait = said.get("retry_after")
    retry_after = float(wait) if isinstance(wait, (int, float)) and wait >= 0 else None
    return kind(status, code, str(said.get("detail", "")), operation=operation, retry_after=retry_after)
