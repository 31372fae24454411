/** Turn: what did it do, step by step? */
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router'
import { useVirtualizer } from '@tanstack/react-virtual'
import { useEffect, useMemo, useRef, useState } from 'react'
import { useKeys } from '../../keys'
import { Asked, External, Failed, Id, Loading, plain, Status, stateOf } from '../../parts'
import { useTitle } from '../../title'
import { mayOperate, useScope } from '../../who'
import { useFormat } from '../../words'
import { StopDialog, Took } from '../runs'
import { useTurn } from './data'
import { Figures, Marks, Shown } from './Rows'
import { type Row, type Step, type Summary, transcript, withWriting } from './transcript'
import style from './turn.module.css'
import { useWords } from './words'

const route = getRouteApi('/$project/turns/$turn')

export function Turn() {
  const { project, turn } = route.useParams()
  // Another turn is another page: nothing of the one before stays.
  return <Whole key={`${project} ${turn}`} project={project} turn={turn} />
}

function Whole({ project, turn }: { project: string; turn: string }) {
  const w = useWords()
  const { shown, cards, question, timeline, children, writing } = useTurn(project, turn)
  const recorded = useMemo(
    () =>
      shown.data
        ? transcript({
            turn: shown.data.turn,
            steps: shown.data.steps,
            question: question.data ?? [],
            cards: cards.data?.map(placed => placed.reading) ?? [],
            children: children.data ?? new Map(),
            segments: timeline.data?.segments ?? [],
          })
        : [],
    [shown.data, question.data, cards.data, children.data, timeline.data],
  )
  const rows = useMemo(() => withWriting(recorded, writing), [recorded, writing])
  useTitle(shown.data && (shown.data.turn.title ?? shown.data.turn.profile_name ?? w.turn))
  const failed = [timeline, children, question].find(query => query.error && query.data === undefined)
  return (
    <Asked query={shown} rows={12}>
      {data => (
        <div className={style.view}>
          <Head project={project} turn={data.turn} />
          {failed && (
            <p className={style.part} role="alert">
              {w.partFailed} {failed.error instanceof Error ? failed.error.message : ''}
            </p>
          )}
          {cards.data === undefined ? (
            cards.error ? (
              <Failed error={cards.error} retry={() => cards.refetch()} />
            ) : (
              <Loading rows={10} />
            )
          ) : (
            <Body project={project} turn={data.turn} steps={data.steps} rows={rows} />
          )}
        </div>
      )}
    </Asked>
  )
}

function Head({ project, turn }: { project: string; turn: Summary }) {
  const w = useWords()
  const format = useFormat()
  const mayStop = mayOperate(useScope(project)) && turn.status === 'open'
  const [isStopping, setStopping] = useState(false)
  const share = turn.input_tokens > 0 ? turn.cached_tokens / turn.input_tokens : 0
  return (
    <header className={style.head}>
      <div className={style.title}>
        <h1>{plain(turn.title ?? turn.profile_name ?? '–')}</h1>
        <Link
          className="button"
          to="/$project/runs/$turn"
          params={{ project, turn: turn.root_turn_id }}
          search={{ sel: turn.agent_turn_id }}
        >
          {w.run}
        </Link>
        {turn.parent_agent_turn_id && (
          <Link
            className="button"
            to="/$project/turns/$turn"
            params={{ project, turn: turn.parent_agent_turn_id }}
            search={{}}
          >
            ↑ {w.parent}
          </Link>
        )}
        {mayStop && (
          <button type="button" className="danger" onClick={() => setStopping(true)}>
            {w.stop}
          </button>
        )}
      </div>
      <p className={style.facts}>
        <Status status={stateOf(turn)} />
        {turn.waiting_for && stateOf(turn) === 'waiting' && (
          <span className="muted">
            {w.waitsFor[turn.waiting_for.kind]} {turn.waiting_for.name && <code>{plain(turn.waiting_for.name)}</code>}
          </span>
        )}
        <strong>{plain(turn.profile_name ?? '–')}</strong>
        <span>
          <Took from={turn.created_at} to={turn.finished_at ?? null} />
        </span>
        <span>{turn.n_steps === 1 ? w.oneStep : w.steps(format.number(turn.n_steps))}</span>
        <span>
          {format.tokens(turn.input_tokens)}→{format.tokens(turn.output_tokens)} ({w.cached(format.percent(share))})
        </span>
        <span>{format.money(turn.microdollars)}</span>
        {turn.external && <External />}
        {turn.started_by && <span className="muted">{w.startedBy(plain(turn.started_by))}</span>}
        {turn.on_behalf_of && <span className="muted">{w.onBehalfOf(plain(turn.on_behalf_of))}</span>}
        {turn.forked_from && (
          <Link to="/$project/turns/$turn" params={{ project, turn: turn.forked_from }} search={{}}>
            {w.forkOf} …{turn.forked_from.slice(-8)}
          </Link>
        )}
        <Id value={turn.agent_turn_id} />
      </p>
      {isStopping && (
        <StopDialog project={project} turns={[turn.agent_turn_id]} close={() => setStopping(false)} done={() => {}} />
      )}
    </header>
  )
}

const NEAR = 80

function Body({ project, turn, steps, rows }: { project: string; turn: Summary; steps: Step[]; rows: Row[] }) {
  const w = useWords()
  const navigate = useNavigate()
  const { step: chosen } = route.useSearch()
  const id = turn.agent_turn_id
  const isOpen = turn.status === 'open'
  const scroll = useRef<HTMLElement>(null)
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    getItemKey: n => rows[n]?.key ?? n,
    estimateSize: n => (rows[n]?.kind === 'step' ? 40 : 96),
    overscan: 6,
  })

  // At the end it follows what is new; scrolled away, it stays and says so.
  const follows = useRef(isOpen && chosen === undefined)
  const [hasNew, setNew] = useState(false)
  const last = rows.at(-1)
  const size = `${rows.length} ${last?.kind === 'writing' ? last.pieces.at(-1)?.text.length : ''}`
  const seen = useRef('')
  const top = useRef(0)
  const height = virtual.getTotalSize()
  useEffect(() => {
    if (seen.current === size) return
    const isFirst = seen.current === ''
    seen.current = size
    if (!follows.current && isOpen && !isFirst) setNew(true)
  }, [size, isOpen])
  // biome-ignore lint/correctness/useExhaustiveDependencies: whatever made it longer
  useEffect(() => {
    if (follows.current && scroll.current) scroll.current.scrollTop = scroll.current.scrollHeight
  }, [size, height])

  const choose = (step: string | undefined) => {
    if (step === undefined) return
    follows.current = false
    navigate({ to: '/$project/turns/$turn', params: { project, turn: id }, search: { step }, replace: true })
  }
  const shownStep = useRef<string>(undefined)
  useEffect(() => {
    if (chosen === undefined || shownStep.current === chosen) return
    const at = rows.findIndex(row => row.kind === 'step' && row.step === chosen)
    if (at < 0) return
    shownStep.current = chosen
    virtual.scrollToIndex(at, { align: 'start' })
  }, [chosen, rows, virtual])
  const walk = (by: number) => {
    const at = steps.findIndex(step => step.step_id === chosen)
    choose(steps[at < 0 ? (by > 0 ? 0 : steps.length - 1) : Math.max(0, Math.min(steps.length - 1, at + by))]?.step_id)
  }
  useKeys(
    {
      j: () => walk(1),
      k: () => walk(-1),
      o: () => {
        const step = chosen ?? steps.at(-1)?.step_id
        if (step) navigate({ to: '/$project/turns/$turn/steps/$step', params: { project, turn: id, step }, search: {} })
      },
      u: () =>
        navigate({ to: '/$project/runs/$turn', params: { project, turn: turn.root_turn_id }, search: { sel: id } }),
    },
    [
      { keys: 'j k', what: w.goNext },
      { keys: 'o', what: w.goSaw },
      { keys: 'u', what: w.goRun },
    ],
  )
  return (
    <div className={style.body}>
      {steps.length > 1 && (
        // Where there is no room for the steps beside the transcript.
        <label className={style.pick}>
          {w.stepsTitle}{' '}
          <select value={chosen ?? ''} onChange={event => choose(event.target.value || undefined)}>
            {chosen === undefined && <option value="">–</option>}
            {steps.map((step, n) => (
              <option key={step.step_id} value={step.step_id}>
                {w.step(n + 1)}
              </option>
            ))}
          </select>
        </label>
      )}
      <section
        className={style.transcript}
        ref={scroll}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
        tabIndex={0}
        aria-label={w.transcript}
        onScroll={event => {
          const { scrollTop, scrollHeight, clientHeight } = event.currentTarget
          if (scrollTop < top.current) follows.current = false
          else if (isOpen && scrollHeight - scrollTop - clientHeight < NEAR) follows.current = true
          top.current = scrollTop
          if (follows.current) setNew(false)
        }}
      >
        {rows.length === 0 && <p className={style.nothing}>{w.nothingYet}</p>}
        <div className={style.rows} style={{ height }}>
          {virtual.getVirtualItems().map(item => {
            const row = rows[item.index]
            if (!row) return null
            return (
              <div
                key={item.key}
                ref={virtual.measureElement}
                data-index={item.index}
                className={style.place}
                data-chosen={row.kind === 'step' && row.step === chosen}
                style={{ transform: `translateY(${item.start}px)` }}
              >
                <Shown project={project} turn={id} row={row} isOpen={isOpen} />
              </div>
            )
          })}
        </div>
      </section>
      {hasNew && (
        <button
          type="button"
          className={style.new}
          onClick={() => {
            follows.current = true
            setNew(false)
            virtual.scrollToIndex(rows.length - 1, { align: 'end' })
          }}
        >
          {w.newBelow}
        </button>
      )}
      <Rail project={project} turn={id} steps={steps} chosen={chosen} choose={choose} />
    </div>
  )
}

interface RailProps {
  project: string
  turn: string
  steps: Step[]
  chosen: string | undefined
  choose: (step: string) => void
}

/** The steps and what they cost, beside the transcript. */
function Rail({ project, turn, steps, chosen, choose }: RailProps) {
  const w = useWords()
  const scroll = useRef<HTMLElement>(null)
  const virtual = useVirtualizer({
    count: steps.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => 80,
    overscan: 6,
  })
  const at = steps.findIndex(step => step.step_id === chosen)
  useEffect(() => {
    if (at >= 0) virtual.scrollToIndex(at)
  }, [at, virtual])
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
    <aside className={style.rail} ref={scroll} tabIndex={0} aria-label={w.stepsTitle}>
      <ol style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map(item => {
          const step = steps[item.index]
          if (!step) return null
          return (
            <li
              key={step.step_id}
              data-chosen={step.step_id === chosen}
              style={{ transform: `translateY(${item.start}px)` }}
            >
              <div>
                <button
                  type="button"
                  className="plain"
                  aria-current={step.step_id === chosen}
                  onClick={() => choose(step.step_id)}
                >
                  {w.step(item.index + 1)}
                </button>
                <span className={style.model} />
                {step.model && (
                  <Link
                    to="/$project/turns/$turn/steps/$step"
                    params={{ project, turn, step: step.step_id }}
                    search={{}}
                  >
                    {w.saw}
                  </Link>
                )}
              </div>
              <div className={style.figures}>
                <span
                  className={`${style.model} cut muted`}
                  title={plain(`${step.provider ?? ''} ${step.model ?? ''}`)}
                >
                  {plain(step.model && (step.provider === step.model ? step.model : `${step.provider} ${step.model}`))}
                </span>
                <Marks step={step} />
              </div>
              <div className={style.figures}>
                <Figures step={step} />
              </div>
            </li>
          )
        })}
      </ol>
    </aside>
  )
}
