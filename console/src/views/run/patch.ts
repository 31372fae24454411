import type { Schemas } from '../../api'
import type { Graph } from './model'

export interface Pages {
  pages: Graph[]
  /** More turns than can be shown. */
  isCut: boolean
}

/** How often a large graph is loaded whole, in milliseconds: events do not tell its steps, tokens and times. */
const WHOLE = 10_000

/** Returns in how many milliseconds a large graph may be loaded whole again. */
export const wholeIn = (last: number, now: number): number => Math.max(0, last + WHOLE - now)

/** Changes loaded pages by what events say: a large graph is not loaded again for each of them. */
export function patch(held: Pages, events: Schemas['TurnEvent'][]): Pages {
  const where = new Map<string, [number, number]>()
  const wanted = new Set(events.map(event => event.agent_turn_id))
  held.pages.forEach((page, p) => {
    page.ids.forEach((id, row) => {
      if (wanted.has(id)) where.set(id, [p, row])
    })
  })
  const pages = held.pages.slice()
  const own = new Set<number>()
  for (const event of events) {
    const found = where.get(event.agent_turn_id)
    if (!found || event.event !== 'task') continue
    const [p, row] = found
    if (!own.has(p)) {
      own.add(p)
      const page = pages[p]!
      pages[p] = {
        ...page,
        status: page.status.slice(),
        finished_ms: page.finished_ms.slice(),
      }
    }
    const page = pages[p]!
    page.status[row] = event.status as Graph['status'][number]
    page.finished_ms[row] = Date.parse(event.created_at)
  }
  return own.size === 0 ? held : { ...held, pages }
}
