/** What can go wrong, and what to do about it. */

/** What to do, by the `code` of the problem. There are further codes, whose `detail` says it. */
export const advice = {
  invalid: 'Change the request: the detail names the field.',
  unauthorized: 'Set WAYBILL_API_KEY, or `key`, to a key that is neither expired nor revoked.',
  forbidden: 'Use a key whose scope and bounds allow this: docs/api.md lists the scopes of each operation.',
  not_found: 'Check the id and the project: what belongs to another project does not exist for this key.',
  method_not_allowed: 'The server is older than this client: update it.',
  unsupported_media_type: 'Send the media type that the OpenAPI document names.',
  conflict: 'Read what is there now, and decide again.',
  taken: 'Choose another name.',
  stale: 'Drop this work: another worker has it, or it is over.',
  delivered: 'Drop this work: the turn has its deliverable.',
  head_lost: 'Drop the turn: the server repairs it, and hands it out again.',
  unseen: 'The turn got a message: read its output box, and go on.',
  lease_lost: 'Drop everything that this worker holds, and go on under another name.',
  session_ended: 'Open another session.',
  idempotency_mismatch: 'Use a new `key` for a different request.',
  budget_exhausted: 'Give the turn higher limits.',
  recursion_depth_exceeded: 'Delegate less deeply, or raise `max_recursion_depth`.',
  not_renderable: 'The receipt is all that is left of this call: its cards have expired or were deleted.',
  card_changed: 'Someone changed these cards in the database: restore them from a backup.',
  unreadable: 'The instruction of the turn has expired or was deleted: start another turn.',
  cannot_compose: 'Check the `llm_config` of the profile.',
  receipt_mismatch: 'Send the receipt and the seal as `compose` gave them.',
  unreadable_response: 'Send the answer of the provider as it came.',
  cannot_fork: 'Fork at another step: the detail says why this one cannot be forked.',
  invalid_package: 'Change the package: the detail names the part.',
  no_artifact: 'Store the artifact first.',
  quota: 'Wait until open turns have ended, or raise the quota of the project.',
  quota_exceeded: 'Remove artifacts, or raise `artifact_quota_bytes`.',
  given_up: 'Upload again.',
  range: 'Ask for a range within the content.',
  enough_keys: 'Revoke one of the keys of this name first.',
  cross_site: 'Send the request from the origin of the server.',
  refused: 'The detail says who refused, and why.',
  too_large: 'Send less at once: store large content as an artifact.',
  too_slow: 'Send the body faster, or in smaller requests.',
  rate_limited: 'Send fewer requests per second.',
  backlog: 'Start more workers, or fewer turns.',
  overloaded: 'Retry later.',
  busy: 'Retry later, or hold fewer long polls and streams open.',
  try_again: 'Retry with the same `key`.',
  unavailable: 'Retry with the same `key` once the server and its database can be reached.',
  internal: 'Retry with the same `key`; the log of the server says what failed.',
  unreachable: 'Check the URL, and that the server runs. A write without an `Idempotency-Key` may have been carried out.',
  timeout: 'Wait longer: the turn goes on by itself.',
  unexpected: 'Check that the URL is that of a Waybill server: something else answered.',
} as const

export type Code = keyof typeof advice

/** A request that failed. `code` is stable; `detail` is the server's text for people; `advice` says what to do. */
export class WaybillError extends Error {
  readonly code: Code | (string & {})
  /** HTTP status, or 0 if there was no answer. */
  readonly status: number
  readonly detail: string
  readonly advice: string
  /** Seconds after which a retry may help, if the server named a time. */
  readonly retryAfter: number | null
  /** The operation that failed, such as `start_turn`. */
  readonly operation: string

  constructor(operation: string, code: string, detail: string, more: { status?: number; retryAfter?: number | null; cause?: unknown } = {}) {
    const todo = Object.hasOwn(advice, code) ? advice[code as Code] : ''
    super(`${operation}: ${code}: ${detail} ${todo}`.trimEnd(), 'cause' in more ? { cause: more.cause } : {})
    this.name = 'WaybillError'
    this.operation = operation
    this.code = code
    this.detail = detail
    this.advice = todo
    this.status = more.status ?? 0
    this.retryAfter = more.retryAfter ?? null
  }
}

/** Checks whether an error is a problem with this code. */
export function isCode(error: unknown, ...codes: Code[]): error is WaybillError & { code: Code } {
  return error instanceof WaybillError && (codes as string[]).includes(error.code)
}

/** A turn that ended without success, whose result was asked for. */
export class TurnFailed extends Error {
  readonly turnId: string
  /** `failed`, `canceled` or `timeout`. */
  readonly status: string
  readonly deliverable: unknown

  constructor(turnId: string, status: string, reason: string | null, deliverable: unknown) {
    super(`turn ${turnId} ended as ${status}: ${reason ?? JSON.stringify(deliverable)}`)
    this.name = 'TurnFailed'
    this.turnId = turnId
    this.status = status
    this.deliverable = deliverable
  }
}
