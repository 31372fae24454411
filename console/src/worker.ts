/** Makes a worker. Trusted Types let a page do that through a named policy only. */
type Policy = { createScriptURL(url: string): string }
type Types = { createPolicy(name: string, rules: { createScriptURL(url: string): string }): Policy }

const own = (url: string) => {
  if (new URL(url, location.href).origin !== location.origin) throw new Error('a worker of another site')
  return url
}
const types = (globalThis as { trustedTypes?: Types }).trustedTypes
const policy: Policy = types?.createPolicy('waybill-worker', { createScriptURL: own }) ?? { createScriptURL: own }

/** `url` comes from `import worker from './x.worker?worker&url'`. */
export function makeWorker(url: string): Worker {
  return new Worker(policy.createScriptURL(url), { type: 'module' })
}
