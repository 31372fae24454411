import { useQuery } from '@tanstack/react-query'
import { api, take } from '../../api'

/** Names of the project's profiles. */
export function useProfiles(project: string) {
  return useQuery({
    queryKey: [project, 'profiles'],
    staleTime: 60_000,
    queryFn: async ({ signal }) => {
      const all = await take(api.GET('/v1/projects/{project}/resources', { params: { path: { project } }, signal }))
      return all.filter(one => one.kind === 'profile').map(one => one.name)
    },
  })
}
