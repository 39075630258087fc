// Pages have addresses: the path names the page, the query its filters.
import { useEffect, useReducer } from "preact/hooks";

export const BASE = "/dashboard/";

export interface Place {
  /** The parts of the path below the dashboard's, decoded. */
  parts: string[];
  query: URLSearchParams;
}

export function place(): Place {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : "";
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { parts, query: new URLSearchParams(location.search) };
}

const listeners = new Set<() => void>();

function moved(): void {
  for (const listener of [...listeners]) listener();
}

addEventListener("popstate", moved);

export function href(...parts: string[]): string {
  return BASE + parts.map(encodeURIComponent).join("/");
}

export function go(address: string): void {
  history.pushState(null, "", address);
  scrollTo(0, 0);
  moved();
}

/** Changes filters in the address without a new entry in the history. */
export function setQuery(changes: Record<string, string>): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  moved();
}

export function usePlace(): Place {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    const listener = (): void => redraw(undefined);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return place();
}

/** Links within the dashboard change the page without loading it again. */
export function followLinks(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = (event.target as Element).closest("a");
  if (!link || link.target || link.origin !== location.origin) return;
  if (!link.pathname.startsWith(BASE) || link.hash) return;
  event.preventDefault();
  go(link.pathname + link.search);
}
