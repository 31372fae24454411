/** What the view asks the server for. A call never changes, so it is asked once. */
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { api, take } from '../../api'
import { turnQuery } from '../../turn'
import type { Handed, SeenMessage } from './model'

/** Messages of one page of bodies. */
const PAGE = 20

export interface Call {
  project: string
  turn: string
  step: string
}

export const useTurn = (call: Call) => useQuery(turnQuery(call.project, call.turn))

/** Asks for the turn again: it has a new step. */
export function useTurnAgain(call: Call) {
  const queries = useQueryClient()
  return () => queries.invalidateQueries({ queryKey: turnQuery(call.project, call.turn).queryKey })
}

export function useSeen({ project, turn, step }: Call) {
  return useQuery({
    queryKey: ['saw', project, turn, step],
    queryFn: () => {
      const query = { step_id: step, bodies: false }
      return take(
        api.GET('/v1/projects/{project}/turns/{turn}/context', { params: { path: { project, turn }, query } }),
      )
    },
  })
}

/** The receipt alone, for a call that cannot be rendered. */
export function useReceipt({ project, turn, step }: Call, enabled: boolean) {
  return useQuery({
    queryKey: ['saw', project, turn, 'receipts'],
    enabled,
    queryFn: () =>
      take(api.GET('/v1/projects/{project}/turns/{turn}/receipts', { params: { path: { project, turn } } })),
    select: receipts => receipts.find(one => one.step_id === step)?.receipt,
  })
}

/** One message with its body, by the page that it stands on. */
export function useMessage({ project, turn, step }: Call, n: number) {
  const after = Math.floor((n - 1) / PAGE) * PAGE
  return useQuery({
    queryKey: ['saw', project, turn, step, 'messages', after],
    enabled: n > 0,
    queryFn: async () => {
      const path = { project, turn }
      const items: SeenMessage[] = []
      // A page has up to 4 MiB: a long message may stand on the next one.
      for (let from = after; items.length < PAGE; ) {
        const query = { step_id: step, after: from, most: PAGE - items.length }
        const address = '/v1/projects/{project}/turns/{turn}/context/messages'
        const page = await take(api.GET(address, { params: { path, query } }))
        items.push(...page.items)
        if (page.next == null || page.items.length === 0) break
        from = Number(page.next)
      }
      return items
    },
    select: items => items.find(message => message.n === n),
  })
}

/** All parts of what the turn was handed. */
export function useHandovers({ project, turn }: Call) {
  return useQuery({
    queryKey: ['saw', project, turn, 'handovers'],
    queryFn: async () => {
      const parts: Handed[] = []
      // Parts are counted from 0, so the first page must not say `after`.
      let after: { after?: number } = {}
      for (;;) {
        const address = '/v1/projects/{project}/turns/{turn}/handovers'
        const query = { most: 1_000, ...after }
        const page = await take(api.GET(address, { params: { path: { project, turn }, query } }))
        parts.push(...page.items)
        if (page.next == null || parts.length >= 10_000) return parts
        after = { after: Number(page.next) }
      }
    },
  })
}

export function useWhy({ project, turn }: Call, card: string) {
  return useQuery({
    queryKey: ['saw', project, turn, 'why', card],
    queryFn: () =>
      take(api.GET('/v1/projects/{project}/turns/{turn}/why/{card}', { params: { path: { project, turn, card } } })),
  })
}

export interface Answering {
  turn: string
  profile: string
}

/** The turns that a call became: what they delivered is its result. */
export function useAnswering({ project, turn }: Call, toolCall: string | null | undefined) {
  return useQuery({
    queryKey: ['saw', project, turn, 'children'],
    enabled: toolCall != null,
    queryFn: () => take(api.GET('/v1/projects/{project}/turns/{turn}/graph', { params: { path: { project, turn } } })),
    select: (graph): Answering[] =>
      graph.ids
        .map((id, n) => ({ id, n }))
        .filter(({ n }) => graph.parent[n] === 0 && graph.edges[graph.edge[n] ?? -1]?.tool_call_id === toolCall)
        .map(({ id, n }) => ({ turn: id, profile: graph.profiles[graph.profile[n] ?? -1] ?? '–' })),
  })
}

export function useBox({ project }: Call, box: string | null | undefined) {
  return useQuery({
    queryKey: ['saw', project, 'box', box],
    enabled: box != null,
    queryFn: () =>
      take(api.GET('/v1/projects/{project}/boxes/{box}', { params: { path: { project, box: box ?? '' } } })),
  })
}

export function useCard({ project }: Call, card: string | undefined) {
  return useQuery({
    queryKey: ['saw', project, 'card', card],
    enabled: card !== undefined,
    queryFn: () =>
      take(api.GET('/v1/projects/{project}/cards/{card}', { params: { path: { project, card: card ?? '' } } })),
  })
}

export function useSight({ project }: Call, card: string, enabled: boolean) {
  return useQuery({
    queryKey: ['saw', project, 'sight', card],
    enabled,
    queryFn: async () => {
      const params = { path: { project, card }, query: { most: 100 } }
      const [sight, calls] = await Promise.all([
        take(api.GET('/v1/projects/{project}/cards/{card}/sight', { params })),
        take(api.GET('/v1/projects/{project}/cards/{card}/calls', { params })),
      ])
      return { sight, calls }
    },
  })
}

export function useRetention({ project }: Call, enabled: boolean) {
  return useQuery({
    queryKey: [project, 'retention'],
    enabled,
    retry: false,
    queryFn: () => take(api.GET('/v1/projects/{project}/retention', { params: { path: { project } } })),
  })
}
