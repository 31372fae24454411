/** Runs: which run was it? */
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router'
import { useVirtualizer } from '@tanstack/react-virtual'
import { memo, useCallback, useEffect, useRef, useState } from 'react'
import { useKeys } from '../../keys'
import { Ago, Command, Empty, External, Failed, Loading, plain, Status, stateOf } from '../../parts'
import { useTitle } from '../../title'
import { mayOperate, useScope } from '../../who'
import { useFormat } from '../../words'
import { FilterBar } from './FilterBar'
import type { Summary } from './filter'
import { useRuns } from './list'
import { useProfiles } from './profiles'
import style from './runs.module.css'
import { StartDialog } from './StartDialog'
import { StopDialog } from './StopDialog'
import { useWords } from './words'

export { RecordedAs } from './actor'
export { StartDialog, StopDialog }

const route = getRouteApi('/$project/runs')

export function Runs() {
  const w = useWords()
  const { project } = route.useParams()
  const { q = '' } = route.useSearch()
  useTitle(w.runs)
  const navigate = useNavigate()
  const mayWrite = mayOperate(useScope(project))
  const profiles = useProfiles(project)
  const { pages, filter, rows, waiting, showWaiting, refresh } = useRuns(project, q)
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set())
  const [shown, setShown] = useState<'start' | 'stop' | null>(null)
  const [at, setAt] = useState(-1)
  const input = useRef<HTMLInputElement>(null)
  const table = useRef<HTMLDivElement>(null)
  const apply = useCallback(
    (text: string) =>
      navigate({ to: '/$project/runs', params: { project }, search: text === '' ? {} : { q: text }, replace: true }),
    [navigate, project],
  )

  const height = useRowHeight()
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => table.current,
    estimateSize: () => height,
    overscan: 8,
  })
  // biome-ignore lint/correctness/useExhaustiveDependencies: the rows have another height on a narrow screen
  useEffect(() => virtual.measure(), [height])
  const items = virtual.getVirtualItems()
  const last = items.at(-1)?.index ?? -1
  const { hasNextPage, isFetching, isFetchNextPageError, fetchNextPage } = pages
  useEffect(() => {
    if (hasNextPage && !isFetching && !isFetchNextPageError && last >= rows.length - 10) fetchNextPage()
  }, [hasNextPage, isFetching, isFetchNextPageError, fetchNextPage, last, rows.length])

  const choose = useCallback(
    (turn: string) =>
      setChosen(old => {
        const next = new Set(old)
        if (!next.delete(turn)) next.add(turn)
        return next
      }),
    [],
  )
  const walk = (by: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, at + by))
    setAt(next)
    virtual.scrollToIndex(next)
    requestAnimationFrame(() => table.current?.querySelector<HTMLElement>(`[data-row="${next}"] a`)?.focus())
  }
  useKeys(
    {
      j: () => walk(1),
      k: () => walk(-1),
      x: () => rows[at] && mayWrite && choose(rows[at].agent_turn_id),
      '/': () => input.current?.focus(),
      n: () => mayWrite && setShown('start'),
    },
    [
      { keys: 'j k', what: w.goNext },
      { keys: '↵', what: w.goOpen },
      ...(mayWrite
        ? [
            { keys: 'x', what: w.goChoose },
            { keys: 'n', what: w.goStart },
          ]
        : []),
      { keys: '/', what: w.goFilter },
    ],
  )
  const open = rows
    .filter(turn => chosen.has(turn.agent_turn_id) && turn.status === 'open')
    .map(turn => turn.agent_turn_id)
  const isFirst = filter.isEmpty && rows.length === 0 && pages.data !== undefined && !hasNextPage
  return (
    <div className={style.view}>
      <header className={style.head}>
        <h1>{w.runs}</h1>
        <FilterBar text={q} apply={apply} profiles={profiles.data ?? []} input={input} />
      </header>
      {(chosen.size > 0 || waiting.length > 0) && (
        <div className={style.bar}>
          {waiting.length > 0 && (
            <button type="button" onClick={showWaiting} title={w.freshSays(waiting.length)}>
              ↑ {w.fresh(waiting.length)}
            </button>
          )}
          {chosen.size > 0 && (
            <>
              <span>{w.chosen(chosen.size)}</span>
              <button type="button" className="danger" onClick={() => setShown('stop')}>
                {w.stop}
              </button>
              <button type="button" className="plain" onClick={() => setChosen(new Set())}>
                {w.clearChosen}
              </button>
            </>
          )}
        </div>
      )}
      <p className="hidden" role="status">
        {waiting.length > 0 ? w.fresh(waiting.length) : ''}
      </p>
      {pages.data === undefined ? (
        pages.error ? (
          <Failed error={pages.error} retry={() => pages.refetch()} />
        ) : (
          <Loading rows={12} />
        )
      ) : isFirst ? (
        <Empty title={w.emptyTitle}>
          <p>{w.emptySays}</p>
          {mayWrite && (
            <button type="button" className="primary" onClick={() => setShown('start')}>
              {w.start}
            </button>
          )}
          <Command>waybill run editor "How is bread made?"</Command>
        </Empty>
      ) : rows.length === 0 && !hasNextPage ? (
        <Empty title={w.noneTitle}>
          <button type="button" onClick={() => apply('')}>
            {w.clear}
          </button>
        </Empty>
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
        <section className={style.scroll} ref={table} tabIndex={0} aria-label={w.runs}>
          <table aria-rowcount={rows.length + 1}>
            <thead>
              <tr aria-rowindex={1} className={style.row}>
                <th>
                  <span className="hidden">{w.choose}</span>
                </th>
                <th>{w.title}</th>
                <th>{w.profile}</th>
                <th>{w.status}</th>
                <th>{w.started}</th>
                <th className="number">{w.took}</th>
                <th className={`${style.below} number`} title={w.turnsSay}>
                  {w.turns}
                </th>
                <th className="number">{w.steps}</th>
                <th className="number">{w.tokens}</th>
                <th className="number">{w.cost}</th>
                <th>
                  <span className="hidden">{w.marks}</span>
                </th>
              </tr>
            </thead>
            <tbody style={{ height: virtual.getTotalSize() }}>
              {items.map(item => {
                const turn = rows[item.index]
                if (!turn) return null
                return (
                  <Row
                    key={turn.agent_turn_id}
                    project={project}
                    turn={turn}
                    n={item.index}
                    top={item.start}
                    isChosen={chosen.has(turn.agent_turn_id)}
                    choose={mayWrite ? choose : null}
                  />
                )
              })}
            </tbody>
          </table>
        </section>
      )}
      {pages.data !== undefined && !isFirst && (
        <footer className={style.foot}>
          {isFetchNextPageError ? (
            <>
              <span role="alert">{w.moreFailed}</span>
              <button type="button" onClick={() => fetchNextPage()}>
                {w.retry}
              </button>
            </>
          ) : hasNextPage ? (
            isFetching && w.loadingMore
          ) : (
            rows.length > 0 && w.end(String(rows.length))
          )}
        </footer>
      )}
      {shown === 'start' && <StartDialog project={project} close={() => setShown(null)} />}
      {shown === 'stop' && (
        <StopDialog
          project={project}
          turns={open}
          close={() => setShown(null)}
          done={() => {
            setChosen(new Set())
            refresh()
          }}
        />
      )}
    </div>
  )
}

interface RowProps {
  project: string
  turn: Summary
  n: number
  top: number
  isChosen: boolean
  choose: ((turn: string) => void) | null
}

const Row = memo(function Row({ project, turn, n, top, isChosen, choose }: RowProps) {
  const w = useWords()
  const format = useFormat()
  const navigate = useNavigate()
  const isRoot = turn.root_turn_id === turn.agent_turn_id
  const to = isRoot ? ('/$project/runs/$turn' as const) : ('/$project/turns/$turn' as const)
  const params = { project, turn: turn.agent_turn_id }
  const title = plain(turn.title ?? w.untitled)
  const share = turn.input_tokens > 0 ? turn.cached_tokens / turn.input_tokens : 0
  const below = turn.n_below ?? null
  return (
    // The link in the row is the way for keys.
    <tr
      aria-rowindex={n + 2}
      data-row={n}
      className={style.row}
      data-chosen={isChosen}
      style={{ transform: `translateY(${top}px)` }}
      onClick={event => {
        if (event.target instanceof Element && event.target.closest('a, button, input, label')) return
        if (getSelection()?.toString()) return
        navigate({ to, params, search: {} })
      }}
    >
      <td className={style.check}>
        {choose && (
          <input
            type="checkbox"
            checked={isChosen}
            aria-label={w.chooseRun(title)}
            onChange={() => choose(turn.agent_turn_id)}
          />
        )}
      </td>
      <td className={`${style.title} cut`}>
        <Link to={to} params={params} search={{}} title={title} className={turn.title === null ? 'muted' : undefined}>
          {title}
        </Link>
      </td>
      <td className={`${style.profile} cut`}>{plain(turn.profile_name ?? '–')}</td>
      <td className={style.status}>
        <Status status={stateOf(turn)} />
      </td>
      <td className={`${style.started} cut`}>
        <Ago time={turn.created_at} />
      </td>
      <td className={`${style.took} number`}>
        <Took from={turn.created_at} to={turn.finished_at ?? null} />
      </td>
      <td className={`${style.below} number`}>
        {below === null ? '–' : below >= 1_000 ? w.atLeast(format.number(1_000)) : format.number(below)}
      </td>
      <td className={`${style.steps} number`}>{format.number(turn.n_steps)}</td>
      <td
        className={`${style.tokens} number`}
        title={w.tokensSay(format.number(turn.input_tokens), format.number(turn.output_tokens), format.percent(share))}
      >
        {format.tokens(turn.input_tokens)}→{format.tokens(turn.output_tokens)}
        <span className={style.cached} aria-hidden="true">
          <i style={{ width: `${Math.round(share * 100)}%` }} />
        </span>
      </td>
      <td className={`${style.cost} number`}>{format.money(turn.microdollars)}</td>
      <td className={style.marks}>
        {turn.forked_from && (
          <span className="muted" title={w.forkedSays}>
            ⑂ {w.forked}
          </span>
        )}
        {turn.external && <External short />}
      </td>
    </tr>
  )
})

/** How long it took, or has been going on. */
export function Took({ from, to }: { from: string; to: string | null }) {
  const format = useFormat()
  const [now, setNow] = useState(Date.now)
  useEffect(() => {
    if (to !== null) return
    const timer = setInterval(() => setNow(Date.now()), 1_000)
    return () => clearInterval(timer)
  }, [to])
  const ms = (to === null ? now : Date.parse(to)) - Date.parse(from)
  return <>{format.took(to === null ? Math.floor(ms / 1_000) * 1_000 : ms)}</>
}

const narrow = '(max-width: 720px)'
function useRowHeight(): number {
  const [isNarrow, setNarrow] = useState(() => matchMedia(narrow).matches)
  useEffect(() => {
    const query = matchMedia(narrow)
    const change = () => setNarrow(query.matches)
    query.addEventListener('change', change)
    return () => query.removeEventListener('change', change)
  }, [])
  return isNarrow ? 68 : 28
}
