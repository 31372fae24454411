import { useMutation } from '@tanstack/react-query'
import { type FormEvent, useId, useState } from 'react'
import { api, once, Problem, take } from '../../api'
import { Dialog } from '../../parts'
import { RecordedAs } from './actor'
import { useFirst } from './focus'
import style from './runs.module.css'
import { useWords } from './words'

/** Stops turns, with a reason for the record. */
export function StopDialog({
  project,
  turns,
  close,
  done,
}: {
  project: string
  turns: string[]
  close: () => void
  done: () => void
}) {
  const w = useWords()
  const id = useId()
  const field = useFirst<HTMLInputElement>()
  const [reason, setReason] = useState('')
  const stop = useMutation({
    mutationFn: async () => {
      const failed: unknown[] = []
      for (const turn of turns) {
        const path = { project, turn }
        const stopped = take(
          api.POST('/v1/projects/{project}/turns/{turn}/stop', { params: { path, header: once() }, body: { reason } }),
        )
        await stopped.catch(error => failed.push(error))
      }
      return failed
    },
    onSuccess: failed => {
      done()
      if (failed.length === 0) close()
    },
  })
  const submit = (event: FormEvent) => {
    event.preventDefault()
    if (reason.trim() !== '') stop.mutate()
  }
  const failed = stop.data ?? []
  const first = failed[0]
  return (
    <Dialog title={w.stopTitle(turns.length)} close={close}>
      <form className={style.form} onSubmit={submit}>
        <p>{turns.length === 0 ? w.noneOpen : w.stopSays}</p>
        <label htmlFor={id}>{w.reason}</label>
        <input
          ref={field}
          id={id}
          value={reason}
          required
          placeholder={w.reasonHint}
          onChange={event => setReason(event.target.value)}
        />
        {failed.length > 0 && (
          <p role="alert" className={style.wrong}>
            {w.stopFailed(failed.length, first instanceof Problem ? first.detail || first.code : String(first))}
          </p>
        )}
        <footer>
          <RecordedAs />
          <span className={style.space} />
          <button type="button" onClick={close}>
            {w.cancel}
          </button>
          <button
            type="submit"
            className="danger"
            disabled={stop.isPending || turns.length === 0 || reason.trim() === ''}
          >
            {stop.isPending ? w.stopping : w.stopNow}
          </button>
        </footer>
      </form>
    </Dialog>
  )
}
