/** Who uses this browser, and which projects they reach. */
import { queryOptions, useQuery } from '@tanstack/react-query'
import { api, Problem, type Schemas, take } from './api'

export interface Who {
  /** As the audit names it: `key:NAME`, `user:SUBJECT`, or `loopback` for `waybill dev`. */
  actor: string
  projects: { slug: string; scope: Schemas['Scope'] }[]
  /** Whether there is a login that can be ended. */
  canLogOut: boolean
}

/** Asks for the login. Without one, `waybill dev` still answers programs and browsers of its own machine. */
async function ask(): Promise<Who> {
  const answer = await api.GET('/ui/session')
  if (answer.data) {
    const { actor, projects } = answer.data
    return { actor, projects, canLogOut: true }
  }
  if (answer.response.status !== 401) await take(Promise.resolve(answer))
  const local = await api.GET('/v1/projects', { params: { query: { most: 100 } } })
  if (!local.data) throw new Problem(401, 'unauthorized', '')
  return {
    actor: 'loopback',
    projects: local.data.items.map(({ slug }) => ({ slug, scope: 'admin' })),
    canLogOut: false,
  }
}

export const whoQuery = queryOptions({ queryKey: ['who'], queryFn: ask, gcTime: Number.POSITIVE_INFINITY })

export const useWho = () => useQuery(whoQuery).data

/** Whether the caller may start, stop and decide in a project. The server decides; this only hides what it would refuse. */
export function useScope(project: string): Schemas['Scope'] | undefined {
  return useWho()?.projects.find(one => one.slug === project)?.scope
}

export const mayOperate = (scope: Schemas['Scope'] | undefined) => scope === 'admin' || scope === 'operator'
