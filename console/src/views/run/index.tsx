/** A run: its shape, and where time and money went. */
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useEffect, useId, useMemo, useRef, useState } from 'react'
import { useKeys } from '../../keys'
import { Failed, Loading, Tabs } from '../../parts'
import { useFormat } from '../../words'
import type { Loss } from './bars'
import { useLayout, useRun } from './data'
import type { Colour, Say } from './draw'
import { type GraphHandle, GraphPane } from './graph'
import { Head } from './head'
import { Inspector } from './inspector'
import { type Folds, noFolds, reveal, toggle } from './layout'
import { nameOf, nextExpensive, nextFailure, numberOf, type Run as RunData, type Step, walk } from './model'
import { looks, looksAt, type Times, tookAt } from './playhead'
import style from './run.module.css'
import { type Scale, scaleOf, toShare, toTime } from './scale'
import { TablePane } from './table'
import { useColours } from './theme'
import { TimelinePane } from './timeline'
import { useWords } from './words'

const route = getRouteApi('/$project/runs/$turn')
const views = ['graph', 'timeline', 'table'] as const
type ViewName = (typeof views)[number]
const colourNames: Colour[] = ['status', 'cost', 'cache', 'external']

export function Run() {
  const { project, turn } = route.useParams()
  // Another run is another page: nothing of the old one stays.
  return <RunPage key={`${project} ${turn}`} project={project} turn={turn} />
}

function RunPage({ project, turn }: { project: string; turn: string }) {
  const w = useWords()
  const data = useRun(project, turn)
  const { run, times } = data
  const now = useNow(data.head.data?.turn.status === 'open')
  if (data.head.error && !data.head.data) {
    return (
      <div className={style.page}>
        <h1 className="hidden">{w.oneRun}</h1>
        <Failed error={data.head.error} retry={() => data.head.refetch()} />
      </div>
    )
  }
  return (
    <div className={style.page} data-ready={run !== null && times !== null}>
      {data.head.data ? (
        <Head project={project} turn={data.head.data.turn} run={run} now={now} />
      ) : (
        <Loading rows={2} />
      )}
      {data.graph.error && !run ? (
        <Failed error={data.graph.error} retry={() => data.graph.refetch()} />
      ) : run && times && run.n > 0 ? (
        <Shown project={project} turn={turn} data={data} run={run} times={times} now={now} />
      ) : (
        <Loading rows={12} />
      )}
      {data.isCut && run && <p className={style.note}>{w.tooMany(String(run.n))}</p>}
    </div>
  )
}

/** The clock, while something runs. */
function useNow(isOpen: boolean): number {
  const [now, setNow] = useState(Date.now)
  useEffect(() => {
    if (!isOpen) return
    const timer = setInterval(() => setNow(Date.now()), 500)
    return () => clearInterval(timer)
  }, [isOpen])
  return now
}

interface ShownProps {
  project: string
  turn: string
  data: ReturnType<typeof useRun>
  run: RunData
  times: Times
  now: number
}

function Shown({ project, turn, data, run, times, now }: ShownProps) {
  const w = useWords()
  const format = useFormat()
  const navigate = useNavigate()
  const search = route.useSearch()
  const colours = useColours()
  const ids = { panel: useId(), says: useId() }
  const view: ViewName = views.find(one => one === search.view) ?? 'graph'
  const colour = colourNames.find(one => one === search.colour) ?? 'status'
  const selected = search.sel ? (run.place.get(search.sel) ?? -1) : -1
  const [folds, setFolds] = useState<Folds>(noFolds)
  const graph = useRef<GraphHandle>(null)

  const change = (next: Partial<typeof search>, isNew = false) =>
    navigate({
      to: '/$project/runs/$turn',
      params: { project, turn },
      search: old => clean({ ...old, ...next }),
      replace: !isNew,
    })
  const select = (i: number) => change({ sel: i < 0 ? undefined : run.ids[i] } as Partial<typeof search>)
  const open = (i: number) =>
    navigate({ to: '/$project/turns/$turn', params: { project, turn: run.ids[i]! }, search: {} })

  // The playhead. While it is dragged, the address follows a little later.
  const [at, setAt] = useState<number | null>(() =>
    search.at && Number.isFinite(Number(search.at)) ? Number(search.at) : null,
  )
  const t = at ?? Number.POSITIVE_INFINITY
  const seen = useRef(data.arrived)
  if (at === null) seen.current = data.arrived
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined)
  const seek = (time: number | null) => {
    setAt(time)
    clearTimeout(timer.current)
    timer.current = setTimeout(
      () => change({ at: time === null ? undefined : String(Math.round(time)) } as Partial<typeof search>),
      250,
    )
  }
  useEffect(() => () => clearTimeout(timer.current), [])

  const isOpen = data.head.data?.turn.status === 'open'
  const scale = useMemo(() => scaleOf(run, times, now), [run, times, now])
  // biome-ignore lint/correctness/useExhaustiveDependencies: only the places of the turns matter here
  const losses = useMemo(() => lossesOf(run, times), [run.place, times])
  const lost = useMemo(() => new Map([...losses].map(([i, list]) => [i, list[0]!.to])), [losses])
  const looksNow = useMemo(() => looksAt(run, times, t, losses), [run, times, t, losses])
  const plan = useLayout(run, folds)
  const closed = useMemo(() => new Set(folds.closed), [folds])

  const fold = (i: number) => {
    if (plan) setFolds(toggle(plan.tree, folds, i))
  }
  // A selected turn that is hidden is unfolded.
  const tree = plan?.tree
  useEffect(() => {
    if (tree && selected >= 0 && selected < tree.n) setFolds(old => reveal(tree, old, selected))
  }, [tree, selected])

  const go = (step: Step) => select(selected < 0 ? 0 : walk(run, selected, step))
  const jump = (to: number) => {
    if (to >= 0) select(to)
  }
  const keys = new Map<string, () => void>([
    ['ArrowLeft', () => go('parent')],
    ['ArrowRight', () => go('child')],
    ['ArrowDown', () => go('next')],
    ['ArrowUp', () => go('previous')],
    ['z', () => graph.current?.fit()],
    ['f', () => selected >= 0 && fold(selected)],
    ['b', () => jump(nextFailure(run, selected))],
    ['$', () => jump(nextExpensive(run, selected))],
    ['Escape', () => select(-1)],
  ])
  useKeys(Object.fromEntries(keys), [
    { keys: '← → ↑ ↓', what: w.keyWalk },
    { keys: '↵', what: w.keyOpen },
    { keys: 'z', what: w.keyFit },
    { keys: 'f', what: w.keyFold },
    { keys: 'b', what: w.keyFailure },
    { keys: '$', what: w.keyExpensive },
  ])

  const say: Say = useMemo(
    () => ({
      took: format.took,
      money: format.money,
      number: format.number,
      steps: (n: number) => w.steps(format.number(n), n === 1),
      fold: w.strip,
      below: w.below,
      external: w.external,
      forkOf: w.forkOf,
      takenOver: w.takenOver,
      unknownTool: w.unknownTool,
      turns: w.manyTurns,
    }),
    [format, w],
  )
  const barSay = {
    took: format.took,
    idle: w.idle,
    takenOver: w.takenOver,
    kind: (kind: string) => w.kinds[kind] ?? kind,
  }
  const bars = { run, times, scale, looks: looksNow, rows: run.order, losses, t, now, selected, say: barSay }
  const spoken =
    selected < 0
      ? w.nothingSelected
      : w.selectedSays(
          labelOf(run, selected),
          w.looks[looks[looksNow[selected]!]!] ?? '',
          format.took(tookAt(run, selected, t, now)),
        )
  const hasNoPrices = colour === 'cost' && !run.cost.some(cost => cost > 0)
  return (
    <>
      <div className={style.bar}>
        <Tabs
          label={w.views}
          tabs={views.map(id => ({ id, title: w[id] }))}
          chosen={view}
          choose={next => change({ view: next === 'graph' ? undefined : next } as Partial<typeof search>)}
          panel={ids.panel}
        />
        {view === 'graph' && (
          <label className={style.colour}>
            {w.colour}{' '}
            <select
              value={colour}
              onChange={event =>
                change({ colour: event.target.value === 'status' ? undefined : event.target.value } as Partial<
                  typeof search
                >)
              }
            >
              {colourNames.map(name => (
                <option key={name} value={name}>
                  {w.colours[name]}
                </option>
              ))}
            </select>
          </label>
        )}
        <Playhead
          scale={scale}
          at={at}
          isOpen={isOpen}
          news={data.arrived - seen.current}
          seek={seek}
          stop={() => isOpen && at === null && seek(now)}
        />
      </div>
      {run.truncated && <p className={style.note}>{w.cutGraph}</p>}
      {hasNoPrices && view === 'graph' && <p className={style.note}>{w.costByTokens}</p>}
      <div className={style.panes} data-inspect={selected >= 0}>
        <div id={ids.panel} role="tabpanel" aria-label={w[view]} className={style.main}>
          <p id={ids.says} className="hidden" aria-live="polite">
            {spoken}
          </p>
          {view === 'graph' &&
            (plan && plan.run.n <= run.n ? (
              <GraphPane
                handle={graph}
                describedBy={ids.says}
                select={select}
                open={open}
                toggle={fold}
                scene={{
                  run: plan.run,
                  plan: plan.plan,
                  times,
                  looks: looksNow,
                  t,
                  now,
                  selected: selected < plan.run.n ? selected : -1,
                  over: -1,
                  colour,
                  colours,
                  closed,
                  lost,
                  forkedFrom: data.head.data?.turn.forked_from ?? null,
                  say,
                }}
              />
            ) : (
              <Loading rows={8} />
            ))}
          {data.timeline.error && !data.timeline.data && view !== 'table' && (
            <p className={style.note} role="alert">
              {w.noTimes}{' '}
              <button type="button" onClick={() => data.timeline.refetch()}>
                {w.retry}
              </button>
            </p>
          )}
          {times.truncated && view !== 'table' && <p className={style.note}>{w.someTimes}</p>}
          {view !== 'table' && (
            <TimelinePane
              bars={bars}
              select={select}
              open={open}
              seek={seek}
              isWhole={view === 'timeline'}
              describedBy={ids.says}
            />
          )}
          {view === 'table' && (
            <TablePane
              run={run}
              times={times}
              looks={looksNow}
              t={t}
              now={now}
              lost={lost}
              selected={selected}
              select={select}
              open={open}
            />
          )}
        </div>
        {selected >= 0 && (
          <Inspector
            project={project}
            run={run}
            times={times}
            looks={looksNow}
            losses={losses.get(selected) ?? []}
            t={t}
            now={now}
            turn={selected}
            select={select}
          />
        )}
      </div>
    </>
  )
}

const labelOf = (run: RunData, i: number) => {
  const number = numberOf(run, i)
  return number > 0 ? `${nameOf(run, i)} ${number}` : nameOf(run, i)
}

function clean<T extends Record<string, unknown>>(search: T): T {
  return Object.fromEntries(Object.entries(search).filter(([, value]) => value !== undefined && value !== '')) as T
}

/** Times in which a worker was lost. */
export function lossesOf(run: RunData, times: Times): Map<number, Loss[]> {
  const found = new Map<number, Loss[]>()
  for (const one of times.at) {
    const i = run.place.get(one.agent_turn_id)
    if (one.kind !== 'lost' || i === undefined) continue
    const loss = { from: one.from_ms, to: one.to_ms ?? one.from_ms }
    found.set(i, [...(found.get(i) ?? []), loss])
  }
  return found
}

const STEPS = 2_000

function Playhead({
  scale,
  at,
  isOpen,
  news,
  seek,
  stop,
}: {
  scale: Scale
  at: number | null
  isOpen: boolean
  news: number
  seek: (t: number | null) => void
  stop: () => void
}) {
  const w = useWords()
  const format = useFormat()
  const id = useId()
  const share = at === null ? 1 : toShare(scale, at)
  const said = at === null ? (isOpen ? w.live : w.end) : `+${format.took(at - scale.from)}`
  return (
    <div className={style.playhead}>
      <label htmlFor={id}>{w.playhead}</label>
      <input
        id={id}
        type="range"
        min={0}
        max={STEPS}
        step={1}
        value={Math.round(share * STEPS)}
        aria-valuetext={said}
        onPointerDown={stop}
        onChange={event => {
          const value = Number(event.target.value)
          seek(value >= STEPS ? null : toTime(scale, value / STEPS))
        }}
      />
      <output htmlFor={id}>{at === null ? `+${format.took(scale.to - scale.from)}` : said}</output>
      <button
        type="button"
        className={style.live}
        data-live={at === null && isOpen}
        disabled={at === null}
        title={at === null ? (isOpen ? w.atLive : w.end) : w.toLive}
        onClick={() => seek(null)}
      >
        {at === null
          ? isOpen
            ? `● ${w.live}`
            : w.end
          : news > 0
            ? w.news(format.number(news))
            : isOpen
              ? `○ ${w.live}`
              : w.end}
      </button>
    </div>
  )
}
