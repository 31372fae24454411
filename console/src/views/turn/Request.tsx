import { useMutation, useQueryClient } from '@tanstack/react-query'
import { type FormEvent, useId, useState } from 'react'
import { api, once, Problem, type Schemas, take } from '../../api'
import { Ago, External, plain, Text } from '../../parts'
import { useScope } from '../../who'
import { useFormat } from '../../words'
import { RecordedAs } from '../runs/actor'
import { useRequest } from './data'
import style from './turn.module.css'
import { Value } from './Value'
import { useWords } from './words'

type Verb = Schemas['Verb']

/** What a person is asked about a call, and what was decided. */
export function Request({ project, call }: { project: string; call: string }) {
  const w = useWords()
  const format = useFormat()
  const query = useRequest(project, call, true)
  if (!query.data) return query.error ? null : <p className="muted">{w.loadsRequest}</p>
  const { request, decided, deadline_at, saw_external } = query.data
  return (
    <section className={style.request} aria-label={w.aPersonIsAsked}>
      <div className={style.label}>
        <span aria-hidden="true">✉</span> {w.aPersonIsAsked}
        {saw_external && <External />}
      </div>
      {request ? (
        <>
          <Text>{request.question}</Text>
          {request.about !== undefined && request.about !== null && !decided && <Value value={request.about} />}
        </>
      ) : (
        <p className="muted">{w.cannotBeShown}</p>
      )}
      {decided ? (
        <p className={style.decided} data-decision={decided.decision}>
          <strong>
            <span aria-hidden="true">{decided.decision === 'rejected' ? '✗' : '✓'}</span>{' '}
            {w.decisions[decided.decision] ?? plain(decided.decision)}
          </strong>{' '}
          {decided.by === 'deadline' ? (
            w.byDeadline
          ) : (
            <>
              {w.by} <code>{plain(decided.by)}</code>
            </>
          )}{' '}
          · <Ago time={decided.at} />
          {decided.note && <Text>{decided.note}</Text>}
        </p>
      ) : (
        <>
          <p className="muted">
            {w.left(format.took(Math.max(0, Date.parse(deadline_at) - Date.now())))} {w.onSilence(silence(request, w))}
            {request?.four_eyes && ` ${w.fourEyes}`}
          </p>
          <Decide project={project} call={call} isQuestion={request?.kind === 'question'} />
        </>
      )}
    </section>
  )
}

function silence(request: Schemas['RequestContent'] | null | undefined, w: ReturnType<typeof useWords>): string {
  const value = request?.default
  if (request?.kind === 'question') return value === undefined || value === null ? w.noAnswer : JSON.stringify(value)
  return value === true ? w.yes : w.no
}

function Decide({ project, call, isQuestion }: { project: string; call: string; isQuestion: boolean }) {
  const w = useWords()
  const id = useId()
  const queries = useQueryClient()
  const scope = useScope(project)
  const [note, setNote] = useState('')
  const [answer, setAnswer] = useState('')
  const decide = useMutation({
    mutationFn: (decision: Verb) =>
      take(
        api.POST('/v1/projects/{project}/requests/{call}', {
          params: { path: { project, call }, header: once() },
          body: {
            decision,
            ...(decision === 'answered' ? { answer } : {}),
            ...(note.trim() === '' ? {} : { note: note.trim() }),
          },
        }),
      ),
    onSettled: () => queries.invalidateQueries({ queryKey: [project, 'request', call] }),
  })
  if (scope !== 'admin' && scope !== 'operator' && scope !== 'approver')
    return <p className="muted">{w.mayNotDecide}</p>
  const submit = (event: FormEvent) => {
    event.preventDefault()
    if (isQuestion && answer.trim() !== '') decide.mutate('answered')
  }
  const { error } = decide
  return (
    <form className={style.decide} onSubmit={submit}>
      {isQuestion && (
        <>
          <label htmlFor={`${id}a`}>{w.answer}</label>
          <textarea id={`${id}a`} rows={3} value={answer} onChange={event => setAnswer(event.target.value)} />
        </>
      )}
      <label htmlFor={`${id}n`}>{w.note}</label>
      <input id={`${id}n`} value={note} placeholder={w.noteHint} onChange={event => setNote(event.target.value)} />
      {error && (
        <p role="alert" className={style.wrong}>
          {error instanceof Problem
            ? error.status === 404
              ? w.decidedBefore
              : error.detail || error.code
            : String(error)}
        </p>
      )}
      <div className={style.buttons}>
        {isQuestion ? (
          <button type="submit" className="primary" disabled={decide.isPending || answer.trim() === ''}>
            {w.sendAnswer}
          </button>
        ) : (
          <>
            <button
              type="button"
              className="danger"
              disabled={decide.isPending}
              onClick={() => decide.mutate('rejected')}
            >
              {w.reject}
            </button>
            <button
              type="button"
              className="primary"
              disabled={decide.isPending}
              onClick={() => decide.mutate('approved')}
            >
              {w.approve}
            </button>
          </>
        )}
        <RecordedAs />
      </div>
    </form>
  )
}
