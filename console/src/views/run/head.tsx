import { useMutation, useQueryClient } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useEffect, useId, useRef, useState } from 'react'
import { api, once, type Schemas, take } from '../../api'
import { Command, Dialog, External, Failed, Id, plain, Status, stateOf } from '../../parts'
import { useTitle } from '../../title'
import { turnQuery } from '../../turn'
import { mayOperate, useScope, useWho } from '../../who'
import { useFormat } from '../../words'
import { type Run, totals } from './model'
import style from './run.module.css'
import { useWords } from './words'

/** A title is content of others: hidden characters are named. */
/** What the run is about, how it is, and what it used. */
export function Head({
  project,
  turn,
  run,
  now,
}: {
  project: string
  turn: Schemas['Summary']
  run: Run | null
  now: number
}) {
  const w = useWords()
  const format = useFormat()
  const scope = useScope(project)
  const [isStopping, setStopping] = useState(false)
  const sum = run ? totals(run) : null
  const end = turn.finished_at ? Date.parse(turn.finished_at) : now
  const isOpen = turn.status === 'open'
  const title = plain(turn.title ?? '') || w.untitled
  useTitle(title)
  return (
    <header className={style.top}>
      <div className={style.title}>
        <h1 className="cut" dir="auto" title={title}>
          {title}
        </h1>
        <Id value={turn.agent_turn_id} />
        {turn.external && <External />}
        <span className={style.push} />
        <span className={style.command}>
          <Command>{`waybill turn show ${turn.agent_turn_id}`}</Command>
        </span>
        {isOpen && mayOperate(scope) && (
          <button type="button" className="danger" onClick={() => setStopping(true)}>
            {w.stop}
          </button>
        )}
      </div>
      <div className={style.sums}>
        <Status status={stateOf(turn)} />
        <span>{format.took(end - Date.parse(turn.created_at))}</span>
        {sum && (
          <>
            <span>{w.turns(format.number(sum.turns), sum.turns === 1)}</span>
            <span>{w.steps(format.number(sum.steps), sum.steps === 1)}</span>
            <span>{w.tokens(format.tokens(sum.input), format.tokens(sum.output))}</span>
            <span>{w.cached(format.percent(sum.input > 0 ? sum.cached / sum.input : 0))}</span>
            <span>{format.money(sum.cost)}</span>
            {sum.failed > 0 && <span className={style.lost}>✗ {w.failures(format.number(sum.failed))}</span>}
          </>
        )}
        {turn.forked_from && (
          <Link to="/$project/runs/$turn" params={{ project, turn: turn.forked_from }} search={{}}>
            ⑂ {w.forkOf(turn.forked_from.slice(-8))}
          </Link>
        )}
        {turn.root_turn_id !== turn.agent_turn_id && (
          <span>
            {w.partOf}:{' '}
            <Link
              to="/$project/runs/$turn"
              params={{ project, turn: turn.root_turn_id }}
              search={{ sel: turn.agent_turn_id }}
            >
              {w.wholeRun}
            </Link>
          </span>
        )}
      </div>
      {isStopping && <Stop project={project} turn={turn.agent_turn_id} close={() => setStopping(false)} />}
    </header>
  )
}

function Stop({ project, turn, close }: { project: string; turn: string; close: () => void }) {
  const w = useWords()
  const who = useWho()
  const field = useId()
  const queries = useQueryClient()
  const [reason, setReason] = useState('')
  const input = useRef<HTMLInputElement>(null)
  useEffect(() => input.current?.focus(), [])
  // One key for this dialog: a second click stops nothing twice.
  const key = useRef(once())
  const stop = useMutation({
    mutationFn: () =>
      take(
        api.POST('/v1/projects/{project}/turns/{turn}/stop', {
          params: { path: { project, turn }, header: key.current },
          body: { reason: reason.trim() },
        }),
      ),
    onSuccess: () => {
      queries.invalidateQueries({ queryKey: turnQuery(project, turn).queryKey })
      queries.invalidateQueries({ queryKey: [project, 'run', turn] })
    },
  })
  return (
    <Dialog title={w.stopTitle} close={close}>
      {stop.data ? (
        <>
          <p role="status">{w.stopped[stop.data.stopped] ?? stop.data.stopped}</p>
          <div className={style.actions}>
            <button type="button" className="primary" onClick={close}>
              {w.close}
            </button>
          </div>
        </>
      ) : (
        <form
          className={style.form}
          onSubmit={event => {
            event.preventDefault()
            if (reason.trim() !== '' && !stop.isPending) stop.mutate()
          }}
        >
          <p>{w.stopSays}</p>
          <label htmlFor={field}>{w.stopReason}</label>
          <input
            ref={input}
            id={field}
            value={reason}
            required
            maxLength={500}
            onChange={event => setReason(event.target.value)}
          />
          {who && <p className="muted">{w.stopAs(who.actor)}</p>}
          {stop.error && <Failed error={stop.error} />}
          <div className={style.actions}>
            <button type="button" onClick={close}>
              {w.cancel}
            </button>
            <button type="submit" className="danger" disabled={reason.trim() === '' || stop.isPending}>
              {w.stopNow}
            </button>
          </div>
        </form>
      )}
    </Dialog>
  )
}
