/** When loaded data is loaded again. */
import type { QueryClient } from '@tanstack/react-query'

const later = new Set<string>()
/** Loads data again because events say that it has changed. What is being loaded is let end first: events that never pause would cancel it for ever. */
export function reload(queries: QueryClient, queryKey: readonly unknown[]) {
  if (queries.isFetching({ queryKey }) === 0) {
    queries.invalidateQueries({ queryKey })
    return
  }
  const name = JSON.stringify(queryKey)
  if (later.has(name)) return
  later.add(name)
  setTimeout(() => {
    later.delete(name)
    reload(queries, queryKey)
  }, 200)
}

/**
 * Loads data again because the stream has just opened. What is loaded for the first time cannot be asked for again meanwhile, and may be of a time
 * before the stream: it is loaded once more when that ends.
 */
export function reloadAll(queries: QueryClient, queryKey: readonly unknown[]) {
  const first = queries.getQueryCache().findAll({ queryKey, fetchStatus: 'fetching' })
  for (const query of first.filter(query => query.state.data === undefined)) {
    const again = () => queries.invalidateQueries({ queryKey: query.queryKey, exact: true })
    // Its end is noted only after the promise is settled.
    const soon = () => void setTimeout(again)
    query.promise?.then(soon, soon)
  }
  queries.invalidateQueries({ queryKey })
}
