import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { type FormEvent, useState } from 'react'
import { api, Problem, take } from '../api'
import { useChoices } from '../choices'
import { useTitle } from '../title'
import style from './frame.module.css'
import { useWords } from './words'

const route = getRouteApi('/welcome')

/** Logs a browser in with an API key, or with the identity provider if the server has one. */
export function Login() {
  const w = useWords()
  useTitle(w.login)
  const { next, why } = route.useSearch()
  const navigate = useNavigate()
  const queries = useQueryClient()
  const { language, setLanguage } = useChoices()
  const [refused, setRefused] = useState('')
  const [isBusy, setBusy] = useState(false)
  const provider = useQuery({ queryKey: ['provider'], queryFn: hasProvider })
  const after = `/ui${next?.startsWith('/') && !next.startsWith('//') ? next : '/'}`
  const send = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault()
    const form = event.currentTarget
    const key = String(new FormData(form).get('key') ?? '').trim()
    setBusy(true)
    setRefused('')
    try {
      await take(api.POST('/ui/session', { body: { key } }))
      form.reset()
      queries.clear()
      navigate({ href: after.slice('/ui'.length) })
    } catch (error) {
      setRefused(error instanceof Problem ? error.detail : String(error))
    }
    setBusy(false)
  }
  return (
    <main className={style.alone}>
      <h1>Waybill</h1>
      {why && !refused && <p role="status">{why === 'out' ? w.loggedOut : w.loginEnded}</p>}
      <p>{w.loginSays}</p>
      <form onSubmit={send}>
        <label htmlFor="key">{w.key}</label>
        <input id="key" name="key" type="password" autoComplete="off" spellCheck={false} required placeholder="wb_…" />
        <button type="submit" className="primary" disabled={isBusy}>
          {isBusy ? w.loggedIn : w.login}
        </button>
      </form>
      {refused && (
        <p role="alert">
          {w.keyRefused} {refused}
        </p>
      )}
      <p className="muted">{w.keyNotStored}</p>
      {provider.data && <a href={`/ui/login?next=${encodeURIComponent(after)}`}>{w.withProvider}</a>}
      <button type="button" className="plain" onClick={() => setLanguage(language === 'en' ? 'zh' : 'en')}>
        {w.language}
      </button>
    </main>
  )
}

/** The server sends to its identity provider, if it has one. */
async function hasProvider(): Promise<boolean> {
  const answer = await fetch('/ui/login?next=/ui/', { redirect: 'manual' })
  return answer.type === 'opaqueredirect'
}
