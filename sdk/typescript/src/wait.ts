/** Waiting that ends when a signal aborts, and ids. */

/** Milliseconds of a timer, which cannot wait longer than 24 days. */
export const timer = (seconds: number) => Math.min(2 ** 31 - 1, Math.max(0, seconds * 1000))

/** Returns a signal that aborts with others, or after some time. Unlike `AbortSignal.any`, `free` leaves nothing behind at those that live long. */
export function bound(signals: (AbortSignal | undefined)[], seconds?: number, reason?: Error) {
  const end = new AbortController()
  const hear = () => end.abort(signals.find(one => one?.aborted)?.reason)
  const late = seconds === undefined ? undefined : setTimeout(() => end.abort(reason), timer(seconds))
  for (const one of signals) one?.addEventListener('abort', hear)
  if (signals.some(one => one?.aborted)) hear()
  const free = () => {
    clearTimeout(late)
    for (const one of signals) one?.removeEventListener('abort', hear)
  }
  return { signal: end.signal, abort: () => end.abort(), free }
}

/** Waits, and throws the reason of the signal if it aborts. */
export function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((done, fail) => {
    if (signal?.aborted) return fail(signal.reason)
    const stop = () => {
      clearTimeout(waiting)
      fail(signal?.reason)
    }
    const waiting = setTimeout(() => {
      signal?.removeEventListener('abort', stop)
      done()
    }, timer(seconds))
    signal?.addEventListener('abort', stop, { once: true })
  })
}

/** Returns how long to wait before the next attempt, in seconds: longer each time, and not the same for all clients. */
export const backoff = (attempt: number) => Math.min(8, 0.25 * 2 ** attempt) * (0.5 + Math.random() / 2)

/** Returns an id that sorts by time (UUIDv7), as cards have. */
export function uuid7(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  new DataView(bytes.buffer).setBigUint64(0, (BigInt(Date.now()) << 16n) | 0x7000n | BigInt(((bytes[6]! & 0x0f) << 8) | bytes[7]!))
  bytes[8] = (bytes[8]! & 0x3f) | 0x80
  const hex = Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}
