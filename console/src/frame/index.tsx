/** The frame around every view: where you are, who you are, whether it is live. */
import { useQueryClient } from '@tanstack/react-query'
import { getRouteApi, Link, Outlet, useLocation, useNavigate } from '@tanstack/react-router'
import { lazy, Suspense, useEffect, useRef, useState } from 'react'
import { api, Problem, take } from '../api'
import { useChoices } from '../choices'
import { helpNow, rememberKeys, useKeys } from '../keys'
import { useLiveState } from '../live'
import { Dialog } from '../parts'
import { mayOperate, useScope, useWho, type Who } from '../who'
import { useFormat } from '../words'
import { Find } from './find'
import style from './frame.module.css'
import { useWords } from './words'

const StartDialog = lazy(() => import('../views/runs').then(({ StartDialog }) => ({ default: StartDialog })))
const route = getRouteApi('/$project')

export function Frame() {
  const w = useWords()
  const { project } = route.useParams()
  const navigate = useNavigate()
  const who = useWho()
  const scope = useScope(project)
  const { theme, setTheme, language, setLanguage } = useChoices()
  const [shown, setShown] = useState<'start' | 'help' | null>(null)
  const find = useRef<HTMLInputElement>(null)
  useEffect(rememberKeys, [])
  useKeys(
    {
      'g n': () => navigate({ to: '/$project/now', params: { project } }),
      'g r': () => navigate({ to: '/$project/runs', params: { project }, search: {} }),
      '?': () => setShown('help'),
    },
    [
      { keys: 'g n', what: w.goNow },
      { keys: 'g r', what: w.goRuns },
      { keys: 'Ctrl K', what: w.goFind },
      { keys: '?', what: w.goHelp },
    ],
  )
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key === 'k') {
        event.preventDefault()
        find.current?.focus()
      }
    }
    window.addEventListener('keydown', listen)
    return () => window.removeEventListener('keydown', listen)
  }, [])
  const projects = who?.projects ?? []
  return (
    <div className={style.frame}>
      <a className={style.skip} href="#main">
        {w.skip}
      </a>
      <header className={style.top}>
        <Link to="/$project/runs" params={{ project }} search={{}} className={style.brand}>
          waybill
        </Link>
        <select
          aria-label={w.project}
          value={project}
          onChange={event => navigate({ to: '/$project/runs', params: { project: event.target.value }, search: {} })}
        >
          {projects.some(one => one.slug === project) || <option>{project}</option>}
          {projects.map(({ slug }) => (
            <option key={slug}>{slug}</option>
          ))}
        </select>
        <Find project={project} input={find} />
        <Live />
        <button type="button" className="plain" onClick={() => setLanguage(language === 'en' ? 'zh' : 'en')}>
          <span lang={language === 'en' ? 'zh-CN' : 'en'}>{w.language}</span>
        </button>
        <button
          type="button"
          className="plain"
          aria-label={theme === 'dark' ? w.light : w.dark}
          title={theme === 'dark' ? w.light : w.dark}
          onClick={() => setTheme(theme === 'dark' ? 'light' : 'dark')}
        >
          ◐
        </button>
        <button type="button" className="plain" aria-label={w.help} title={w.help} onClick={() => setShown('help')}>
          ?
        </button>
        {who && (
          <span className={`${style.actor} muted cut`} title={w.recordedAs(who.actor)}>
            {who.actor}
          </span>
        )}
        {who?.canLogOut && <LogOut />}
      </header>
      <CutOff />
      {who && !projects.some(one => one.slug === project) && <NotYours who={who} />}
      <nav className={style.side} aria-label={w.navigation}>
        <Link to="/$project/now" params={{ project }} activeProps={{ 'aria-current': 'page' }}>
          {w.now}
        </Link>
        <Link
          to="/$project/runs"
          params={{ project }}
          search={{}}
          activeProps={{ 'aria-current': 'page' }}
          activeOptions={{ includeSearch: false }}
        >
          {w.runs}
        </Link>
        {mayOperate(scope) && (
          <button type="button" onClick={() => setShown('start')}>
            {w.start}
          </button>
        )}
      </nav>
      <main id="main" className={style.main} tabIndex={-1} key={project}>
        <Outlet />
      </main>
      {shown === 'start' && (
        <Suspense>
          <StartDialog project={project} close={() => setShown(null)} />
        </Suspense>
      )}
      {shown === 'help' && (
        <Dialog title={w.helpTitle} close={() => setShown(null)}>
          <dl className={style.keys}>
            {helpNow().map(({ keys, what }) => (
              <div key={keys + what} style={{ display: 'contents' }}>
                <dt>
                  <kbd>{keys}</kbd>
                </dt>
                <dd>{what}</dd>
              </div>
            ))}
          </dl>
        </Dialog>
      )}
    </div>
  )
}

function Live() {
  const w = useWords()
  const { state } = useLiveState()
  return (
    <span
      className={style.live}
      data-state={state}
      role="status"
      title={state === 'refused' ? w.refusedSays : undefined}
    >
      {state !== 'off' && (
        <>
          <span aria-hidden="true">{state === 'live' ? '●' : state === 'cut' ? '✗' : '○'}</span>
          {w[state]}
        </>
      )}
    </span>
  )
}

/** Says that what is shown may be old. */
function CutOff() {
  const w = useWords()
  const format = useFormat()
  const { state, since } = useLiveState()
  const [now, setNow] = useState(0)
  useEffect(() => {
    if (state !== 'cut') return
    setNow(Date.now())
    const timer = setInterval(() => setNow(Date.now()), 1_000)
    return () => clearInterval(timer)
  }, [state])
  // A moment without a stream is ordinary: another view opens its own.
  if (state !== 'cut' || now - since < 1_000) return null
  return (
    <div className={style.banner} role="alert" data-state="cut">
      {w.cutBanner(format.took(Math.round((now - since) / 1_000) * 1_000))}
    </div>
  )
}

/** Says which projects the login reaches, where this is none of them: another tab may have logged in with another key. */
function NotYours({ who: { actor, projects, canLogOut } }: { who: Who }) {
  const w = useWords()
  const { pathname, searchStr } = useLocation()
  if (!canLogOut) return null
  const reached = projects.map(one => one.slug).join(', ')
  return (
    <div className={style.banner} role="alert" data-state="other">
      {reached === '' ? w.noProjects : w.otherProject(actor, reached)}{' '}
      <Link to="/welcome" search={{ next: pathname + searchStr }}>
        {w.otherKey}
      </Link>
    </div>
  )
}

function LogOut() {
  const w = useWords()
  const queries = useQueryClient()
  const navigate = useNavigate()
  const [hasFailed, setFailed] = useState(false)
  const end = async () => {
    try {
      await take(api.DELETE('/ui/session'))
    } catch (error) {
      // 401: it has ended already.
      if (!(error instanceof Problem) || error.status !== 401) return setFailed(true)
    }
    await navigate({ to: '/welcome', search: { why: 'out' } })
    queries.clear()
  }
  return (
    <button type="button" className="plain" onClick={end}>
      {hasFailed ? w.logOutFailed : w.logOut}
    </button>
  )
}
