// Addresses of pages, for links.

import { path } from "./api.js";

export const toQueue = ({ vhost, name }) => path`#/queues/${vhost}/${name}`;
// The name of the default exchange in addresses.
export const toExchange = ({ vhost, name }) => path`#/exchanges/${vhost}/${name || "amq.default"}`;
export const toLoop = (name) => path`#/governor/${name}`;
export const toAdmission = (name) => path`#/admission/${name}`;
export const toModel = ({ kind, scope }) => path`#/models/${kind}/${scope}`;
export const toReport = (name) => path`#/experiments?report=${name}`;
