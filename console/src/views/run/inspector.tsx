import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { External, Failed, Id, Text } from '../../parts'
import { turnQuery } from '../../turn'
import { useFormat } from '../../words'
import type { Loss } from './bars'
import { nameOf, numberOf, type Run } from './model'
import { looks, type Times, tookAt } from './playhead'
import style from './run.module.css'
import { lookGlyph } from './theme'
import { useWords } from './words'

interface Props {
  project: string
  run: Run
  times: Times
  looks: Uint8Array
  losses: Loss[]
  t: number
  now: number
  turn: number
  select: (turn: number) => void
}

/** What is known of the selected turn. */
export function Inspector({ project, run, looks: now, losses, t, now: clock, turn, select }: Props) {
  const w = useWords()
  const format = useFormat()
  const id = run.ids[turn]!
  const shown = useQuery(turnQuery(project, id))
  const look = looks[now[turn]!]!
  const parent = run.parent[turn]!
  const edge = run.edges[run.edge[turn]!]
  const batch = run.batches[run.batch[turn]!]
  const number = numberOf(run, turn)
  const input = run.input[turn]!
  const start = run.created[0]!
  const last = shown.data?.steps.at(-1)
  return (
    <aside className={style.inspector} aria-label={w.inspector} data-turn={id}>
      <header>
        <h2 className="cut">{number > 0 ? `${nameOf(run, turn)} ${number}` : nameOf(run, turn)}</h2>
        <Id value={id} />
        <span className={style.push} />
        <button type="button" className="plain" aria-label={w.close} onClick={() => select(-1)}>
          ✕
        </button>
      </header>
      <nav className={style.links}>
        <Link className="button" to="/$project/turns/$turn" params={{ project, turn: id }} search={{}}>
          {w.transcript}
        </Link>
        {last && (
          <Link
            className="button"
            to="/$project/turns/$turn/steps/$step"
            params={{ project, turn: id, step: last.step_id }}
            search={{}}
          >
            {w.saw}
          </Link>
        )}
      </nav>
      {shown.data && shown.data.steps.length === 0 && <p className="muted">{w.noSteps}</p>}
      {shown.error && <Failed error={shown.error} retry={() => shown.refetch()} />}
      <dl className={style.facts}>
        <dt>{w.status}</dt>
        <dd>
          <span className={style.look} data-look={look}>
            <span aria-hidden="true">{lookGlyph[look]}</span> {w.looks[look]}
          </span>{' '}
          {run.external[turn] === 1 && <External />}
        </dd>
        {shown.data?.turn.reason && (
          <>
            <dt>{w.reason}</dt>
            <dd>
              <Text>{shown.data.turn.reason}</Text>
            </dd>
          </>
        )}
        {losses.length > 0 && (
          <>
            <dt>{w.worker}</dt>
            <dd>
              {losses.map(loss => (
                <p key={loss.from} className={style.lost}>
                  <span aria-hidden="true">↯ ↻ </span>
                  {w.workerLost(format.took(loss.from - start), format.took(loss.to - start))}
                </p>
              ))}
            </dd>
          </>
        )}
        <dt>{w.whoAsked}</dt>
        <dd>
          {parent < 0 ? (
            w.person
          ) : (
            <button type="button" className={style.link} title={w.showParent} onClick={() => select(parent)}>
              {w.askedCall(edge?.tool ?? w.notInRecord, nameOf(run, parent))}
            </button>
          )}
        </dd>
        {batch && (
          <>
            <dt>{w.batch}</dt>
            <dd>
              {w.batchTask(format.number(run.task[turn]! + 1), format.number(batch.n_tasks))} ·{' '}
              {w.looks[batch.status] ?? batch.status}
              {batch.fail_fast && ` · ${w.failFast}`} <Id value={batch.batch_id} />
            </dd>
          </>
        )}
        <dt>{w.started}</dt>
        <dd title={format.when(run.created[turn]!)}>
          {format.clock(run.created[turn]!)} <span className="muted">+{format.took(run.created[turn]! - start)}</span>
        </dd>
        <dt>{w.finished}</dt>
        <dd>{run.finished[turn]! < 0 || run.finished[turn]! > t ? w.stillOpen : format.clock(run.finished[turn]!)}</dd>
        <dt>{w.took}</dt>
        <dd>{format.took(tookAt(run, turn, t, clock))}</dd>
        <dt>{w.stepsHead}</dt>
        <dd>{format.number(run.steps[turn]!)}</dd>
        <dt>{w.read}</dt>
        <dd>
          {format.number(input)}{' '}
          {input > 0 && (
            <span className="muted">
              {w.cachedOf(format.number(run.cached[turn]!), format.percent(run.cached[turn]! / input))}
            </span>
          )}
        </dd>
        <dt>{w.wrote}</dt>
        <dd>{format.number(run.output[turn]!)}</dd>
        <dt>{w.cost}</dt>
        <dd>{format.money(run.cost[turn]!)}</dd>
      </dl>
    </aside>
  )
}
