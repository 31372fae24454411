/** Reads what `check` needs over the HTTP API. It runs in a worker: requests are plain `fetch`, with the cookie of this site. */
import { NotRenderable, type Placed, type Server } from './check'
import type { Reading } from './hash'

async function read(address: string, init?: RequestInit): Promise<Response> {
  const response = await fetch(address, { credentials: 'same-origin', ...init })
  if (response.ok) return response
  const problem: { code?: string; detail?: string } = await response.json().catch(() => ({}))
  const said = problem.detail ?? `${response.status} ${response.statusText}`
  throw problem.code === 'not_renderable' ? new NotRenderable(said) : new Error(said)
}

export function overHttp(project: string, turn: string, step: string, signal?: AbortSignal): Server {
  const base = `/v1/projects/${encodeURIComponent(project)}`
  const init = signal ? { signal } : {}
  return {
    async *request() {
      const response = await read(`${base}/turns/${turn}/context/request?step_id=${step}`, init)
      const reader = response.body!.getReader()
      for (;;) {
        const { done, value } = await reader.read()
        if (done) return
        yield value
      }
    },
    async cards(ids) {
      const found: Reading[] = []
      let left = ids
      while (left.length > 0) {
        const [now, later] = [left.slice(0, 1_000), left.slice(1_000)]
        const headers = { 'content-type': 'application/json' }
        const body = JSON.stringify({ card_ids: now })
        const answer = await read(`${base}/cards/batch`, { ...init, method: 'POST', headers, body })
        const part: { found: Reading[]; left_card_ids: string[] } = await answer.json()
        found.push(...part.found)
        if (part.left_card_ids.length === now.length) throw new Error('the server gave no cards')
        left = [...part.left_card_ids, ...later]
      }
      return found
    },
    async places({ box_id, from, upto }) {
      const placed: Placed[] = []
      let after = from - 1
      while (after < upto) {
        const most = Math.min(upto - after, 1_000)
        const answer = await read(`${base}/boxes/${box_id}/cards?after=${after}&most=${most}`, init)
        const page: { items: Placed[]; next: string | null } = await answer.json()
        // A page may go on behind the span. Whether all else stands where it should is checked with the cards.
        placed.push(...page.items.filter(one => !(one.place > upto)))
        if (page.next === null || Number(page.next) <= after) break
        after = Number(page.next)
      }
      return placed
    },
  }
}
