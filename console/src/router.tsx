import type { QueryClient } from '@tanstack/react-query'
import {
  createRootRouteWithContext,
  createRoute,
  createRouter,
  lazyRouteComponent,
  redirect,
} from '@tanstack/react-router'
import { onLoggedOut, Problem } from './api'
import { Frame } from './frame'
import { Broken, Missing } from './frame/broken'
import { whoQuery } from './who'

/** Keeps the named parameters of an address, as text. */
function texts<K extends string>(...names: K[]) {
  return (search: Record<string, unknown>): { [name in K]?: string } => {
    const kept: { [name in K]?: string } = {}
    for (const name of names) {
      const value = search[name]
      if (value !== undefined && value !== null && value !== '') kept[name] = String(value)
    }
    return kept
  }
}

const root = createRootRouteWithContext<{ queries: QueryClient }>()({
  notFoundComponent: Missing,
  errorComponent: Broken,
})

const login = createRoute({
  getParentRoute: () => root,
  path: '/welcome',
  validateSearch: texts('next', 'why'),
  component: lazyRouteComponent(() => import('./frame/login'), 'Login'),
})

const first = createRoute({
  getParentRoute: () => root,
  path: '/',
  beforeLoad: async ({ context, location }) => {
    const who = await known(context.queries, location.href)
    const project = who.projects[0]
    if (project) throw redirect({ to: '/$project/runs', params: { project: project.slug }, search: {} })
  },
  component: Missing,
})

/** Returns who uses the browser, or sends to the login. */
async function known(queries: QueryClient, next: string) {
  try {
    return await queries.ensureQueryData(whoQuery)
  } catch (error) {
    if (error instanceof Problem && error.status === 401)
      throw redirect({ to: '/welcome', search: next === '/' ? {} : { next } })
    throw error
  }
}

const project = createRoute({
  getParentRoute: () => root,
  path: '/$project',
  beforeLoad: ({ context, location }) => known(context.queries, location.href),
  component: Frame,
})
const home = createRoute({
  getParentRoute: () => project,
  path: '/',
  beforeLoad: ({ params }) => {
    throw redirect({ to: '/$project/runs', params, search: {} })
  },
})
const now = createRoute({
  getParentRoute: () => project,
  path: '/now',
  component: lazyRouteComponent(() => import('./views/now'), 'Now'),
})
const runs = createRoute({
  getParentRoute: () => project,
  path: '/runs',
  validateSearch: texts('q'),
  component: lazyRouteComponent(() => import('./views/runs'), 'Runs'),
})
const run = createRoute({
  getParentRoute: () => project,
  path: '/runs/$turn',
  validateSearch: texts('view', 'sel', 'at', 'colour'),
  component: lazyRouteComponent(() => import('./views/run'), 'Run'),
})
const turn = createRoute({
  getParentRoute: () => project,
  path: '/turns/$turn',
  validateSearch: texts('step'),
  component: lazyRouteComponent(() => import('./views/turn'), 'Turn'),
})
const saw = createRoute({
  getParentRoute: () => project,
  path: '/turns/$turn/steps/$step',
  validateSearch: texts('tab', 'message', 'card'),
  component: lazyRouteComponent(() => import('./views/saw'), 'Saw'),
})

export function makeRouter(queries: QueryClient) {
  const router = createRouter({
    routeTree: root.addChildren([first, login, project.addChildren([home, now, runs, run, turn, saw])]),
    basepath: '/ui',
    context: { queries },
    defaultPreload: 'intent',
    // Search parameters are plain text, so that an address can be typed.
    parseSearch: search => Object.fromEntries(new URLSearchParams(search)),
    stringifySearch: search => {
      const text = new URLSearchParams(
        Object.entries(search).filter(([, value]) => value !== undefined) as [string, string][],
      )
      return text.size > 0 ? `?${text}` : ''
    },
  })
  onLoggedOut(() => {
    const { pathname, href } = router.state.location
    if (pathname === '/welcome') return
    queries.removeQueries({ queryKey: ['who'] })
    router.navigate({ to: '/welcome', search: { next: href, why: 'ended' } })
  })
  return router
}

declare module '@tanstack/react-router' {
  interface Register {
    router: ReturnType<typeof makeRouter>
  }
}
