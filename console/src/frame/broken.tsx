/** Pages for what should not happen. */
import { useQueryClient } from '@tanstack/react-query'
import { Problem } from '../api'
import { Failed } from '../parts'
import { whoQuery } from '../who'
import style from './frame.module.css'
import { useWords } from './words'

export function Missing() {
  const w = useWords()
  const who = useQueryClient().getQueryData(whoQuery.queryKey)
  return (
    <main className={style.alone}>
      <h1>{w.missing}</h1>
      <p>{who?.projects.length === 0 ? w.noProjects : w.missingSays}</p>
      <a href="/ui/">{w.toRuns}</a>
    </main>
  )
}

export function Broken({ error }: { error: unknown }) {
  const w = useWords()
  if (error instanceof Problem) {
    return (
      <main>
        <Failed error={error} retry={() => location.reload()} />
      </main>
    )
  }
  // A part of the page that the server no longer has: it was replaced by a newer version.
  const isOld = /dynamically imported module|module script|preload/i.test(String(error))
  return (
    <main className={style.alone} role="alert">
      <h1>{isOld ? w.upgraded : w.broken}</h1>
      <p>{isOld ? w.upgradedSays : w.brokenSays}</p>
      {isOld || <pre>{error instanceof Error ? (error.stack ?? error.message) : String(error)}</pre>}
      <button type="button" className="primary" onClick={() => location.reload()}>
        {w.reload}
      </button>
    </main>
  )
}
