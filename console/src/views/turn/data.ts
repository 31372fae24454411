/** What the view loads, and how it stays up to date. */
import { type QueryClient, useQuery, useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { api, type Schemas, take } from '../../api'
import { useLive } from '../../live'
import { reload } from '../../reload'
import { turnQuery } from '../../turn'
import { type Card, type Child, type Writing, write } from './transcript'

type Placed = Schemas['Placed']
const PAGE = 1_000

/** Loads the cards of a box. Boxes only grow: loaded again, it goes on after the last card. */
async function loadCards(queries: QueryClient, project: string, box: string, key: unknown[], signal: AbortSignal) {
  let all = queries.getQueryData<Placed[]>(key) ?? []
  let after = all.at(-1)?.place ?? 0
  for (;;) {
    const page = await take(
      api.GET('/v1/projects/{project}/boxes/{box}/cards', {
        params: { path: { project, box }, query: { after, most: PAGE } },
        signal,
      }),
    )
    if (page.items.length > 0) all = [...all, ...page.items]
    if (!page.next) return all
    after = Number(page.next)
    // A long turn is readable while the rest comes.
    queries.setQueryData(key, all)
  }
}

async function loadQuestion(project: string, ids: string[], signal: AbortSignal): Promise<Card[]> {
  const cards = await take(
    api.POST('/v1/projects/{project}/cards/batch', { params: { path: { project } }, body: { card_ids: ids }, signal }),
  )
  const found = new Map(cards.found.map(card => [card.card_id, card]))
  return ids.map(id => found.get(id) ?? { state: 'gone', card_id: id, hash: '' })
}

/** The turns that each call became. */
async function loadChildren(project: string, turn: string, signal: AbortSignal): Promise<Map<string, Child[]>> {
  const graph = await take(
    api.GET('/v1/projects/{project}/turns/{turn}/graph', { params: { path: { project, turn } }, signal }),
  )
  const children = new Map<string, Child[]>()
  for (let n = 1; n < graph.n; n += 1) {
    const edge = graph.edges[graph.edge[n] ?? -1]
    if (graph.parent[n] !== 0 || !edge) continue
    const of = children.get(edge.tool_call_id) ?? []
    of.push({
      turn: graph.ids[n]!,
      profile: graph.profiles[graph.profile[n] ?? -1] ?? '–',
      status: graph.status[n]!,
    })
    children.set(edge.tool_call_id, of)
  }
  return children
}

export function useTurn(project: string, turn: string) {
  const queries = useQueryClient()
  const path = { project, turn }
  const shown = useQuery(turnQuery(project, turn))
  const summary = shown.data?.turn
  const box = summary?.output_box_id ?? ''
  const cardsKey = [project, 'turn cards', box]
  const cards = useQuery({
    queryKey: cardsKey,
    enabled: box !== '',
    queryFn: ({ signal }) => loadCards(queries, project, box, cardsKey, signal),
  })
  const ids = summary?.query_card_ids ?? []
  const question = useQuery({
    queryKey: [project, 'turn question', ids],
    enabled: ids.length > 0,
    queryFn: ({ signal }) => loadQuestion(project, ids, signal),
  })
  const timeline = useQuery({
    queryKey: [project, 'turn timeline', turn],
    queryFn: ({ signal }) =>
      take(api.GET('/v1/projects/{project}/turns/{turn}/timeline', { params: { path }, signal })),
  })
  const children = useQuery({
    queryKey: [project, 'turn children', turn],
    queryFn: ({ signal }) => loadChildren(project, turn, signal),
  })

  const [writing, setWriting] = useState<Writing[]>([])
  const pieces = useRef<Schemas['TokenEvent'][]>([])
  const timers = useRef<Record<'frame' | 'own' | 'below', ReturnType<typeof setTimeout> | undefined>>({
    frame: undefined,
    own: undefined,
    below: undefined,
  })
  // biome-ignore lint/correctness/useExhaustiveDependencies: another turn begins anew
  useEffect(() => {
    const all = timers.current
    return () => {
      for (const name of ['frame', 'own', 'below'] as const) {
        clearTimeout(all[name])
        all[name] = undefined
      }
      pieces.current = []
      setWriting([])
    }
  }, [turn])
  const after = (name: 'frame' | 'own' | 'below', ms: number, call: () => void) => {
    timers.current[name] ??= setTimeout(() => {
      timers.current[name] = undefined
      call()
    }, ms)
  }
  useLive(summary ? { project, root: summary.root_turn_id, tokens: [turn] } : null, {
    batch: (events, tokens) => {
      for (const piece of tokens) if (piece.agent_turn_id === turn) pieces.current.push(piece)
      if (pieces.current.length > 0) {
        // About 30 times a second.
        after('frame', 33, () => {
          const landed = pieces.current
          pieces.current = []
          setWriting(old => write(old, landed))
        })
      }
      if (events.some(event => event.agent_turn_id === turn)) {
        after('own', 150, () => {
          reload(queries, turnQuery(project, turn).queryKey)
          for (const kind of ['turn timeline', 'turn children', 'request']) reload(queries, [project, kind])
          reload(queries, cardsKey)
        })
      } else if (events.some(event => event.event === 'state' || event.event === 'task')) {
        after('below', 1_000, () => reload(queries, [project, 'turn children', turn]))
      }
    },
  })
  // What has landed is a card now.
  const steps = shown.data?.steps
  useEffect(() => {
    if (!steps) return
    const landed = new Set(steps.map(step => step.step_id))
    setWriting(old => (old.some(one => landed.has(one.step)) ? old.filter(one => !landed.has(one.step)) : old))
  }, [steps])
  return { shown, cards, question, timeline, children, writing }
}

export function useRequest(project: string, call: string, enabled: boolean) {
  return useQuery({
    queryKey: [project, 'request', call],
    enabled,
    queryFn: ({ signal }) =>
      take(api.GET('/v1/projects/{project}/requests/{call}', { params: { path: { project, call } }, signal })),
  })
}
