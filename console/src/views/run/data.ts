/** What a run is made of, and how it is kept up to date. */
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useEffect, useMemo, useRef, useState } from 'react'
import { api, type Schemas, take } from '../../api'
import { useLive } from '../../live'
import { reload } from '../../reload'
import { turnQuery } from '../../turn'
import { makeWorker } from '../../worker'
import { type Folds, type Layout, layout, type Tree } from './layout'
import workerUrl from './layout.worker?worker&url'
import { type Graph, groupOf, patchedRun, type Run, runOf } from './model'
import { type Pages, patch, wholeIn } from './patch'
import { type Times, timesOf } from './playhead'

/** The most pages of a graph: 100,000 turns. */
const MOST_PAGES = 10
/** A graph of up to so many turns is loaded whole when something has happened. */
const SMALL = 3_000

async function graphPages(project: string, turn: string, signal: AbortSignal, from?: Pages): Promise<Pages> {
  const pages = from?.pages.slice() ?? []
  let after: string | null | undefined = pages.at(-1)?.ids.at(-1)
  while (pages.length < MOST_PAGES + (from ? 200 : 0)) {
    const query = after ? { after } : {}
    const page: Graph = await take(
      api.GET('/v1/projects/{project}/turns/{turn}/graph', { params: { path: { project, turn }, query }, signal }),
    )
    if (page.n > 0) pages.push(page)
    after = page.next
    if (!after) return { pages, isCut: false }
  }
  return { pages, isCut: true }
}

export function useRun(project: string, turn: string) {
  const queries = useQueryClient()
  const graphKey = useMemo(() => [project, 'run', turn, 'graph'], [project, turn])
  const timesKey = useMemo(() => [project, 'run', turn, 'timeline'], [project, turn])
  const head = useQuery(turnQuery(project, turn))
  const graph = useQuery({
    queryKey: graphKey,
    queryFn: ({ signal }) => graphPages(project, turn, signal),
    structuralSharing: false,
  })
  const timeline = useQuery({
    queryKey: timesKey,
    queryFn: ({ signal }) =>
      take(
        api.GET('/v1/projects/{project}/turns/{turn}/timeline', {
          params: { path: { project, turn }, query: { tree: true } },
          signal,
        }),
      ),
    structuralSharing: false,
  })
  const isLarge = (head.data?.turn.n_below ?? 0) >= 1_000 && !graph.data
  useEffect(() => {
    if (isLarge) startEarly()
  }, [isLarge])
  const made = useRef<{ pages: Graph[]; run: Run } | null>(null)
  const run = useMemo(() => {
    if (!graph.data) return null
    const { pages } = graph.data
    const before = made.current
    // Events leave the lists of ids as they are.
    const isPatched =
      before !== null &&
      before.run.n === pages.reduce((sum, page) => sum + page.n, 0) &&
      before.pages.length === pages.length &&
      pages.every((page, n) => page.ids === before.pages[n]!.ids)
    const run = isPatched ? patchedRun(before.run, pages) : runOf(pages)
    made.current = { pages, run }
    return run
  }, [graph.data])
  // biome-ignore lint/correctness/useExhaustiveDependencies: events leave the places as they are
  const times: Times | null = useMemo(
    () => (run ? timesOf(run, timeline.data?.segments ?? [], timeline.data?.truncated ?? false) : null),
    [run?.place, timeline.data],
  )

  // Events say that something has happened, not what has begun: turns and times are loaded again, not more often than this.
  const [arrived, setArrived] = useState(0)
  const waiting = useRef<{
    timer: ReturnType<typeof setTimeout> | undefined
    events: Schemas['TurnEvent'][]
    at: number
  }>({
    timer: undefined,
    events: [],
    at: 0,
  })
  const whole = useRef<{ timer: ReturnType<typeof setTimeout> | undefined; at: number }>({
    timer: undefined,
    at: Date.now(),
  })
  const loadWhole = () => {
    clearTimeout(whole.current.timer)
    whole.current = { timer: undefined, at: Date.now() }
    reload(queries, graphKey)
    reload(queries, timesKey)
  }
  const load = async () => {
    const events = waiting.current.events
    waiting.current = { timer: undefined, events: [], at: Date.now() }
    setArrived(n => n + events.length)
    const held = queries.getQueryData<Pages>(graphKey)
    const size = held?.pages.reduce((sum, page) => sum + page.n, 0) ?? 0
    reload(queries, turnQuery(project, turn).queryKey)
    const isOver = events.some(event => event.event === 'task' && event.agent_turn_id === turn)
    if (!held || size <= SMALL || isOver) {
      loadWhole()
      return
    }
    whole.current.timer ??= setTimeout(loadWhole, wholeIn(whole.current.at, Date.now()))
    try {
      queries.setQueryData(graphKey, patch(held, events))
      const more = await graphPages(project, turn, new AbortController().signal, held)
      const now = queries.getQueryData<Pages>(graphKey)
      if (now && more.pages.length > held.pages.length) {
        queries.setQueryData(graphKey, { ...now, pages: [...now.pages, ...more.pages.slice(held.pages.length)] })
      }
    } catch {
      // The next event tries again.
    }
  }
  const plan = (events: Schemas['TurnEvent'][]) => {
    const held = waiting.current
    for (const event of events) held.events.push(event)
    if (held.timer !== undefined) return
    held.timer = setTimeout(load, Math.max(120, 700 - (Date.now() - held.at)))
  }
  useLive(head.error && !head.data ? null : { project, root: head.data?.turn.root_turn_id ?? turn }, {
    batch(events) {
      if (events.length > 0) plan(events)
    },
  })
  useEffect(
    () => () => {
      clearTimeout(waiting.current.timer)
      clearTimeout(whole.current.timer)
    },
    [],
  )

  return { head, graph, timeline, run, times, arrived, isCut: graph.data?.isCut ?? false }
}

/** From this many turns on, places are computed in a worker. */
const WORKER_FROM = 2_000

/** The worker of a large run. It is started while the run is still being loaded. */
let early: Worker | null = null
function startEarly() {
  early ??= makeWorker(workerUrl)
}
function takeWorker(): Worker {
  const one = early ?? makeWorker(workerUrl)
  early = null
  return one
}

export function useLayout(run: Run | null, folds: Folds): { plan: Layout; tree: Tree; run: Run } | null {
  // biome-ignore lint/correctness/useExhaustiveDependencies: events leave the children as they are, and with them the tree
  const tree: Tree | null = useMemo(() => {
    if (!run) return null
    const group = new Int32Array(run.n)
    for (let i = 0; i < run.n; i++) group[i] = groupOf(run, i)
    return { n: run.n, parent: run.parent, childStart: run.childStart, children: run.children, group }
  }, [run?.children])
  const worker = useRef<Worker | null>(null)
  const asked = useRef(0)
  const [made, setMade] = useState<{ plan: Layout; tree: Tree; run: Run } | null>(null)
  const isSmall = (tree?.n ?? 0) <= WORKER_FROM
  const small = useMemo(() => (tree && isSmall ? { plan: layout(tree, folds), tree } : null), [tree, folds, isSmall])
  // biome-ignore lint/correctness/useExhaustiveDependencies: a tree belongs to its run, and is made anew with it
  useEffect(() => {
    if (!tree || !run || isSmall) return
    const turn = ++asked.current
    worker.current ??= takeWorker()
    worker.current.onmessage = (event: MessageEvent<{ turn: number; plan: Layout }>) => {
      if (event.data.turn === asked.current) setMade({ plan: event.data.plan, tree, run })
    }
    worker.current.onerror = () => setMade({ plan: layout(tree, folds), tree, run })
    worker.current.postMessage({ turn, tree, folds })
  }, [tree, folds, isSmall])
  useEffect(
    () => () => {
      worker.current?.terminate()
      worker.current = null
    },
    [],
  )
  if (isSmall) return small && run && { ...small, run }
  // Places of the tree before are drawn with the run that they were computed for.
  return made && run && made.tree === tree ? { ...made, run } : made
}
