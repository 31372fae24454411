/** The HTTP API, with types that are made from its document. */
import createClient from 'openapi-fetch'
import type { components, paths } from '../../sdk/typescript/src/schema'

export type Schemas = components['schemas']

/** A request that failed: what the server said, or that it could not be reached. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly retryAfter: number | null = null,
  ) {
    super(detail)
  }
}

/** Called when the server no longer knows this browser. */
let loggedOut = () => {}
export function onLoggedOut(call: () => void) {
  loggedOut = call
}

/** Asks how a stream is answered, because an `EventSource` does not say. 0 if the server cannot be reached. */
export async function statusOf(address: string): Promise<number> {
  const end = new AbortController()
  try {
    const { status } = await fetch(address, { signal: end.signal })
    if (status === 401) loggedOut()
    return status
  } catch {
    return 0
  } finally {
    end.abort()
  }
}

export const api = createClient<paths>({
  baseUrl: '/',
  fetch: async (request: Request) => {
    try {
      return await fetch(request)
    } catch (error) {
      if (error instanceof DOMException && error.name === 'AbortError') throw error
      throw new Problem(0, 'unreachable', '')
    }
  },
})

/** Returns the data of an answer, or throws the problem that it is. */
export async function take<T>(answer: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await answer
  if (response.ok && data !== undefined) return data
  const said = (error ?? {}) as Partial<Schemas['Problem']>
  if (response.status === 401) loggedOut()
  throw new Problem(
    response.status,
    said.code ?? 'unexpected',
    said.detail ?? response.statusText,
    said.retry_after ?? null,
  )
}

/** Headers of a write: sent again by the network or by a second click, it happens once. */
export function once(): { 'Idempotency-Key': string } {
  return { 'Idempotency-Key': crypto.randomUUID() }
}
