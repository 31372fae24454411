/** A turn with its steps: what every view of it begins with. */
import { queryOptions } from '@tanstack/react-query'
import { api, take } from './api'

export const turnQuery = (project: string, turn: string) =>
  queryOptions({
    queryKey: [project, 'turn', turn],
    queryFn: ({ signal }) =>
      take(api.GET('/v1/projects/{project}/turns/{turn}', { params: { path: { project, turn } }, signal })),
  })
