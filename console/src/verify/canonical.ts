/**
 * The canonical form of JSON (RFC 8785): sorted keys, one way to write a number or a string. JavaScript's own forms of numbers and strings
 * are those of the RFC, and it sorts by UTF-16 units as the RFC asks. The escapes of Waybill (`␛0000`) are text here and stay as they are.
 */
export function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value === 'object' && value !== null) {
    const fields = value as Record<string, unknown>
    const keys = Object.keys(fields).sort()
    return `{${keys.map(key => `${JSON.stringify(key)}:${canonical(fields[key])}`).join(',')}}`
  }
  return JSON.stringify(value)
}
