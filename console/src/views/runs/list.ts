/** The list of runs: pages from the server, rows that change in place, and new ones that wait to be shown. */
import { type InfiniteData, useInfiniteQuery, useQueryClient } from '@tanstack/react-query'
import { useEffect, useMemo, useRef, useState } from 'react'
import { api, type Schemas, take } from '../../api'
import { useLive } from '../../live'
import { type Filter, parse, type Summary } from './filter'

type Page = Schemas['Page_Summary']
const MOST = 100
/** Rows further down that are asked for one by one when an event names them. */
const MOST_SINGLE = 8

function load(project: string, filter: Filter, after: string | null, signal?: AbortSignal): Promise<Page> {
  const query = { ...filter.query(Date.now()), most: MOST, ...(after === null ? {} : { after }) }
  return take(
    api.GET('/v1/projects/{project}/turns', { params: { path: { project }, query }, ...(signal ? { signal } : {}) }),
  )
}

export function useRuns(project: string, text: string) {
  const queries = useQueryClient()
  const filter = useMemo(() => parse(text), [text])
  const key = useMemo(() => [project, 'runs', text], [project, text])
  const pages = useInfiniteQuery({
    queryKey: key,
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) => load(project, filter, pageParam, signal),
    getNextPageParam: page => page.next ?? null,
  })
  const rows = useMemo(() => {
    const seen = new Map<string, Summary>()
    for (const page of pages.data?.pages ?? [])
      for (const turn of page.items)
        if (filter.passes(turn) && !seen.has(turn.agent_turn_id)) seen.set(turn.agent_turn_id, turn)
    return [...seen.values()]
  }, [pages.data, filter])

  const [waiting, setWaiting] = useState<Summary[]>([])
  // biome-ignore lint/correctness/useExhaustiveDependencies: another list begins anew
  useEffect(() => setWaiting([]), [key])

  const known = useRef(rows)
  known.current = rows
  const touched = useRef(new Set<string>())
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined)
  useEffect(() => () => clearTimeout(timer.current), [])

  /** Puts newer rows in the place of the old ones; returns those that have no place yet. */
  const replace = (newer: Summary[]): Summary[] => {
    const byId = new Map(newer.map(turn => [turn.agent_turn_id, turn]))
    queries.setQueryData<InfiniteData<Page>>(
      key,
      old =>
        old && {
          ...old,
          pages: old.pages.map(page =>
            page.items.some(turn => byId.has(turn.agent_turn_id))
              ? { ...page, items: page.items.map(turn => byId.get(turn.agent_turn_id) ?? turn) }
              : page,
          ),
        },
    )
    const data = queries.getQueryData<InfiniteData<Page>>(key)
    const here = new Set(data?.pages.flatMap(page => page.items.map(turn => turn.agent_turn_id)))
    return newer.filter(turn => !here.has(turn.agent_turn_id))
  }

  const add = (newer: Summary[]) =>
    queries.setQueryData<InfiniteData<Page>>(
      key,
      old =>
        old && {
          ...old,
          pages: old.pages.map((page, n) => (n === 0 ? { ...page, items: [...newer, ...page.items] } : page)),
        },
    )

  const look = async () => {
    timer.current = undefined
    const ids = touched.current
    touched.current = new Set()
    try {
      const first = await load(project, filter, null)
      const onFirst = new Set(first.items.map(turn => turn.agent_turn_id))
      const others = known.current
        .filter(turn => ids.has(turn.agent_turn_id) && !onFirst.has(turn.agent_turn_id))
        .slice(0, MOST_SINGLE)
      const singles = await Promise.all(
        others.map(turn =>
          take(
            api.GET('/v1/projects/{project}/turns/{turn}', { params: { path: { project, turn: turn.agent_turn_id } } }),
          ).then(shown => shown.turn),
        ),
      )
      const newest = known.current[0]?.agent_turn_id ?? ''
      // Ids grow with time: what is older than the first row is on a page that is not loaded.
      const fresh = replace([...first.items, ...singles]).filter(turn => turn.agent_turn_id > newest)
      if (known.current.length === 0) add(fresh)
      else setWaiting(fresh.filter(filter.passes))
    } catch {
      // The stream says when it can be asked again.
    }
  }
  useLive(
    { project },
    {
      batch: events => {
        if (events.length === 0) return
        for (const event of events) {
          touched.current.add(event.root_turn_id)
          touched.current.add(event.agent_turn_id)
        }
        timer.current ??= setTimeout(look, 1_000)
      },
    },
  )
  const showWaiting = () => {
    add(waiting)
    setWaiting([])
  }
  return { filter, pages, rows, waiting, showWaiting, refresh: look }
}
