/** Now: what runs, and what is stuck? */
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router'
import { type ReactNode, useEffect, useRef, useState } from 'react'
import { api, type Schemas, take } from '../../api'
import { useKeys } from '../../keys'
import { useLive } from '../../live'
import { Ago, Asked, Command, Empty, External, plain } from '../../parts'
import { reload } from '../../reload'
import { useTitle } from '../../title'
import { mayOperate, useScope } from '../../who'
import { useFormat } from '../../words'
import { StartDialog } from '../runs'
import style from './now.module.css'
import { useWords } from './words'

const route = getRouteApi('/$project/now')
const MOST_REQUESTS = 20

export function Now() {
  const w = useWords()
  const { project } = route.useParams()
  useTitle(w.now)
  const queries = useQueryClient()
  const path = { project }
  const now = useQuery({
    queryKey: [project, 'now'],
    queryFn: ({ signal }) => take(api.GET('/v1/projects/{project}/now', { params: { path }, signal })),
  })
  const requests = useQuery({
    queryKey: [project, 'now requests'],
    queryFn: ({ signal }) =>
      take(api.GET('/v1/projects/{project}/requests', { params: { path, query: { most: MOST_REQUESTS } }, signal })),
  })
  // Events say that something has changed; at most every two seconds it is asked what.
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined)
  const asked = useRef(0)
  useEffect(() => () => clearTimeout(timer.current), [])
  useLive(
    { project },
    {
      batch: events => {
        if (events.length === 0 || timer.current !== undefined) return
        timer.current = setTimeout(
          () => {
            timer.current = undefined
            asked.current = Date.now()
            reload(queries, [project, 'now'])
            reload(queries, [project, 'now requests'])
          },
          Math.max(100, 2_000 - (Date.now() - asked.current)),
        )
      },
    },
  )
  return (
    <div className={style.view}>
      <h1>{w.now}</h1>
      <Asked query={now} rows={8}>
        {data => <Whole project={project} now={data} requests={requests} />}
      </Asked>
    </div>
  )
}

interface WholeProps {
  project: string
  now: Schemas['Now']
  requests: { data: Schemas['Page_ShownRequest'] | undefined; error: Error | null; refetch: () => unknown }
}

function Whole({ project, now, requests }: WholeProps) {
  const w = useWords()
  const format = useFormat()
  const navigate = useNavigate()
  const mayStart = mayOperate(useScope(project))
  const [isStarting, setStarting] = useState(false)
  const waiting = [...now.waiting].sort((a, b) => a.oldest_at.localeCompare(b.oldest_at))
  const open = (n: number) => {
    const row = waiting[n]
    if (row) navigate({ to: '/$project/runs', params: { project }, search: { q: `waits:${row.kind}` } })
  }
  useKeys({ 1: () => open(0), 2: () => open(1), 3: () => open(2), 4: () => open(3) }, [
    { keys: '1 … 4', what: w.goRow },
  ])
  const { last_hour: hour } = now
  const isIdle = now.n_running + now.n_waiting + now.n_asking + now.n_ready + now.n_queued === 0
  return (
    <>
      <dl className={style.figures}>
        <Figure project={project} name={w.running} q="turns:all status:running" look="running">
          {format.number(now.n_running)}
        </Figure>
        <Figure project={project} name={w.waiting} q="turns:all status:waiting" look="waiting">
          {format.number(now.n_waiting)}
        </Figure>
        <Figure project={project} name={w.asking} q="waits:person" look="asks">
          {format.number(now.n_asking)}
        </Figure>
        <Figure project={project} name={w.ready} q="waits:worker" look="waiting">
          {format.number(now.n_ready)}
        </Figure>
        <Figure project={project} name={w.queued} q="waits:queue" look="waiting">
          {format.number(now.n_queued)}
        </Figure>
        <Figure project={project} name={w.failed} q="turns:all status:failed since:1h" look="failed">
          {format.number(hour.n_failed)}
        </Figure>
        <Figure project={project} name={w.spent} title={w.spentSays}>
          {format.money(hour.microdollars)}
        </Figure>
        <Figure project={project} name={w.oldest}>
          {now.oldest_ready_at ? <Ago time={now.oldest_ready_at} /> : '–'}
        </Figure>
      </dl>
      {(!now.is_all || !hour.is_all) && <p className="muted">{w.notAll}</p>}
      {isIdle && (
        <Empty title={w.emptyTitle}>
          <p>{w.emptySays}</p>
          {mayStart && (
            <button type="button" className="primary" onClick={() => setStarting(true)}>
              {w.start}
            </button>
          )}
          <Command>waybill run editor "How is bread made?"</Command>
        </Empty>
      )}
      <div className={style.columns}>
        <section>
          <h2>{w.byWhat}</h2>
          {waiting.length === 0 ? (
            <p className="muted">{w.nobodyWaits}</p>
          ) : (
            <table>
              <thead>
                <tr>
                  <th>{w.waitsForWhat}</th>
                  <th className="number">{w.count}</th>
                  <th>{w.since}</th>
                </tr>
              </thead>
              <tbody>
                {waiting.map(row => (
                  <tr key={`${row.kind} ${row.target ?? ''}`}>
                    <td>
                      <Link to="/$project/runs" params={{ project }} search={{ q: `waits:${row.kind}` }}>
                        {w.waitsFor[row.kind] ?? row.kind}
                        {row.target && <code> {row.target}</code>}
                      </Link>
                    </td>
                    <td className="number">{format.number(row.n)}</td>
                    <td>
                      <Ago time={row.oldest_at} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </section>
        <section>
          <h2>{w.needsYou}</h2>
          <Asked query={requests as never} rows={2}>
            {(page: Schemas['Page_ShownRequest']) => <Requests project={project} page={page} />}
          </Asked>
        </section>
        <section>
          <h2>{w.lastHour}</h2>
          <Hour project={project} hour={hour} />
        </section>
        <section>
          <h2 title={w.workersSay}>{w.workers}</h2>
          <ul className={style.workers}>
            {now.workers.map(({ worker_target, alive }) => {
              const n = waiting.filter(row => row.target === worker_target).reduce((sum, row) => sum + row.n, 0)
              return (
                <li key={worker_target} data-alive={alive} data-stuck={!alive && n > 0}>
                  <span aria-hidden="true">{alive ? '●' : '○'}</span> <code>{worker_target}</code>{' '}
                  <span>{alive ? w.alive : n > 0 ? w.stuck(format.number(n)) : w.notAlive}</span>
                </li>
              )
            })}
          </ul>
        </section>
      </div>
      {isStarting && <StartDialog project={project} close={() => setStarting(false)} />}
    </>
  )
}

interface FigureProps {
  project: string
  name: string
  q?: string
  look?: string
  title?: string
  children: ReactNode
}

function Figure({ project, name, q, look, title, children }: FigureProps) {
  return (
    <div data-look={look} data-zero={children === '0'} title={title}>
      <dt>{name}</dt>
      <dd>
        {q ? (
          <Link to="/$project/runs" params={{ project }} search={{ q }}>
            {children}
          </Link>
        ) : (
          children
        )}
      </dd>
    </div>
  )
}

function Requests({ project, page }: { project: string; page: Schemas['Page_ShownRequest'] }) {
  const w = useWords()
  const format = useFormat()
  if (page.items.length === 0) return <p className="muted">{w.nothingNeeds}</p>
  return (
    <ul className={style.requests}>
      {page.items.map(request => {
        const left = Date.parse(request.deadline_at) - Date.now()
        return (
          <li key={request.tool_call_id}>
            <span aria-hidden="true" className={style.letter}>
              ✉
            </span>
            <div>
              <Link to="/$project/turns/$turn" params={{ project, turn: request.agent_turn_id }} search={{}}>
                {plain(request.title ?? w.untitled)}
              </Link>
              <p className="muted">
                {plain(request.profile_name ?? '–')} · {left > 0 ? w.left(format.took(left)) : w.late}{' '}
                {request.saw_external && <External />}
              </p>
            </div>
            <Link
              className="button"
              to="/$project/turns/$turn"
              params={{ project, turn: request.agent_turn_id }}
              search={{}}
              aria-label={`${w.review}: ${plain(request.title ?? '')}`}
            >
              {w.review}
            </Link>
          </li>
        )
      })}
      {page.next && <li className="muted">{w.more}</li>}
    </ul>
  )
}

/** What became of the turns of the last hour: figures, and bars to compare them. */
function Hour({ project, hour }: { project: string; hour: Schemas['LastHour'] }) {
  const w = useWords()
  const format = useFormat()
  const rows = [
    { name: w.started, n: hour.n_started, look: 'running', q: 'turns:all since:1h' },
    { name: w.success, n: hour.n_success, look: 'success', q: 'turns:all status:success since:1h' },
    { name: w.hourFailed, n: hour.n_failed, look: 'failed', q: 'turns:all status:failed since:1h' },
    { name: w.canceled, n: hour.n_canceled, look: 'canceled', q: 'turns:all status:canceled since:1h' },
    { name: w.timeout, n: hour.n_timeout, look: 'timeout', q: 'turns:all status:timeout since:1h' },
  ]
  const most = Math.max(1, hour.n_started)
  return (
    <dl className={style.hour}>
      {rows.map(row => (
        <div key={row.look}>
          <dt>{plain(row.name)}</dt>
          <dd className="number">
            <Link to="/$project/runs" params={{ project }} search={{ q: row.q }}>
              {format.number(row.n)}
            </Link>
          </dd>
          <dd className={style.bar} aria-hidden="true">
            <i data-look={row.look} style={{ width: `${(row.n / most) * 100}%` }} />
          </dd>
        </div>
      ))}
    </dl>
  )
}
