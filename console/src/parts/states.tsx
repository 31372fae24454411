/** What a view shows while there is nothing to show. */
import { type UseQueryResult, useQueryClient } from '@tanstack/react-query'
import { type ReactNode, useEffect, useState } from 'react'
import { Problem } from '../api'
import { whoQuery } from '../who'
import style from './parts.module.css'
import { useWords } from './words'

export function Loading({ rows = 6 }: { rows?: number }) {
  const w = useWords()
  return (
    <div className={style.skeleton} role="status" aria-label={w.loading}>
      {Array.from({ length: rows }, (_, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: they are all the same
        <i key={n} />
      ))}
    </div>
  )
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className={style.state} data-state="empty">
      <h2>{title}</h2>
      {children}
    </div>
  )
}

/** A request that failed: what is wrong, and what to do. */
export function Failed({ error, retry }: { error: unknown; retry?: () => void }) {
  const w = useWords()
  const problem = error instanceof Problem ? error : new Problem(0, 'unexpected', String(error))
  const [left, setLeft] = useState(problem.retryAfter ?? 0)
  useEffect(() => {
    if (left <= 0) return
    const timer = setTimeout(() => setLeft(left - 1), 1_000)
    return () => clearTimeout(timer)
  }, [left])
  const isRefused = problem.status === 403
  const title = isRefused
    ? w.notAllowed
    : problem.code === 'unreachable'
      ? w.unreachable
      : problem.status === 410
        ? w.gone
        : problem.status === 404
          ? w.notFound
          : w.failedToLoad
  const state = isRefused ? 'refused' : problem.status === 410 || problem.status === 404 ? 'gone' : 'error'
  const queries = useQueryClient()
  // Another tab may have logged in with another key: the login is that of the whole browser.
  useEffect(() => {
    if (state !== 'error' && queries.getQueryData(whoQuery.queryKey)?.canLogOut)
      queries.invalidateQueries({ queryKey: whoQuery.queryKey })
  }, [state, queries])
  return (
    <div className={style.state} role="alert" data-state={state}>
      <h2>{title}</h2>
      {isRefused && <p>{w.notAllowedSays}</p>}
      <p>{problem.code === 'unreachable' ? w.unreachableSays : problem.detail}</p>
      <p className="muted">
        <code>{problem.code}</code>
        {problem.status > 0 && ` · HTTP ${problem.status}`}
      </p>
      {retry && state === 'error' && (
        <button type="button" onClick={retry} disabled={left > 0}>
          {left > 0 ? w.retryIn(left) : w.retry}
        </button>
      )}
    </div>
  )
}

/** What is shown could not be loaded again. */
function Old({ retry }: { retry: () => void }) {
  const w = useWords()
  return (
    <p className={style.old} role="status" data-state="old">
      {w.old}{' '}
      <button type="button" onClick={retry}>
        {w.retry}
      </button>
    </p>
  )
}

/** Shows the data of a query, or how it is. Data that is there stays while it is loaded again. */
export function Asked<T>({
  query,
  rows,
  children,
}: {
  query: Pick<UseQueryResult<T>, 'data' | 'error' | 'refetch'>
  rows?: number
  children: (data: T) => ReactNode
}) {
  const { data, error } = query
  // What may no longer be seen, or is gone, does not stay on the screen.
  const isOver = error instanceof Problem && [403, 404, 410].includes(error.status)
  if (data !== undefined && !isOver) {
    return (
      <>
        {error && <Old retry={() => query.refetch()} />}
        {children(data)}
      </>
    )
  }
  if (error) return <Failed error={error} retry={() => query.refetch()} />
  return rows === undefined ? <Loading /> : <Loading rows={rows} />
}
